"""The checks that a careful reviewer of such a study makes by hand, one module a theme; all are plain functions on columns of rows.

Each gives a small record with plain values, `found` where it looks for a mistake, and one sentence. What was not measured is `Missing`
with its reason. The findings about precision that led to them, and what makes each one now:

| what went wrong, or had to be worked out by hand | what finds it |
| --- | --- |
| the headline changed with the run of the baseline it was read against | `baselines.baseline_choice` on `Comparison.against_each_run` |
| an interval excluded zero against one run of the baseline only | the same; verdict `baseline-dependent` of `kernel.differences` |
| the shift of a mean was taken for the size of run-to-run noise | `kernel.floors.floor`: rows that differ, spread by cluster |
| a divergence between repeats two thirds as large as that between engines went unseen | `shared_floor.floor_on_same_clusters`: `ratio` |
| "three times the floor" set six documents over a floor from two | `shared_floor.floor_on_same_clusters`: `mixed_ratio` beside `ratio` |
| run-to-run variation laid at batching, while it begins at the second prefill chunk | `chunks.bit_equality_by_chunk` |
| a gap "at long context" that was one kind of content | `confounding.confounded_buckets`: `pooled` beside `within_blocks` |
| a trend with context that the only block with all lengths does not show | `confounding.difference_of_differences` |
| "no gap below 8K" held for KL and not for NLL | `sharpness.split_nll_gap`: `kl_gap` beside `gap`; every measure is a look |
| fifteen looks at one error rate; a bucket headlined after the fact | `kernel.looks`; Bonferroni interval of `kernel.differences` |
| whether dropping any one window keeps the result, and how many have its sign | `outliers.carrying_windows`; `few_clusters.sign_test_p` |
| windows of one source counted as independent | the panel's cluster ids; shared text: `duplicates.duplicate_windows` |
| a candidate or setting that changes more than what it is named for | `comparisons.pairs.confounds` |
| distributions that are flatter overall, which the NLL gap hides in itself | `sharpness.entropy_of_arm`, `sharpness.split_nll_gap` |
| NLL of a greedily generated text rewards sharpness | `sharpness.split_nll_gap`: `sharpness` and `displacement` |
| "moves by more than the interval": its width, or its lower bound? | `power.panel_power`; verdicts of `kernel.differences` |
| a percentile bootstrap over three documents, with ten distinct resamples | `few_clusters.few_clusters` |
| one window with wild rows carried a result | `outliers.carrying_windows`: `carrying`, `worst_rows` |
| wild rows given to one engine, though no repeat of that document existed | `hypersensitive.hypersensitive_rows`: `also_with_itself` |
| "does not differ" without the effect that the panel could have excluded | `power.panel_power`: `excluded_above`, `smallest_effect` |
| thirty near-copies of one filler text counted as thirty windows | `duplicates.duplicate_windows`: `groups`, `merged` |
| rows that any arithmetic moves by nats, read as the reference's error | `hypersensitive.hypersensitive_rows` with `repeats` |
| results not read against the panel's own paired bar | `paired_bar.paired_bar`, `paired_bar.full_bar` |
| only one way of computing a row was scored | pairs of score paths: `comparisons.pairs` |
"""
