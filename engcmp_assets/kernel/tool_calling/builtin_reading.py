"""Built-in scenarios whose turns read the world: following codes, failures, ambiguity, no needless call."""

from __future__ import annotations

from engcmp_assets.kernel.tool_calling.scenarios import Call, Known, Scenario, Tool, Turn

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


_TRACK = Tool("track_parcel", "Where a parcel is.", {"parcel": _text("parcel code, for example KX-10000000")})
_DEPOT = Tool("depot_gate", "The gate code of a depot.", {"depot": _text("depot code, for example D-1000")})

_FOLLOW = Scenario(
    "follow_a_code",
    "the second turn needs a code of the first one's result",
    (_TRACK, _DEPOT, Tool("depot_staff", "Who works at a depot.", {"depot": _TEXT})),
    (
        Known(
            Call("track_parcel", {"parcel": "KX-48213907"}),
            ({"parcel": "KX-48213907", "state": "in transit", "last_depot": "D-2290", "now_at": "D-7153"},),
        ),
        Known(Call("depot_gate", {"depot": "D-7153"}), ({"depot": "D-7153", "gate_code": "G-5582"},)),
        Known(Call("depot_gate", {"depot": "D-2290"}), ({"depot": "D-2290", "gate_code": "G-1147"},)),
    ),
    (
        Turn(
            "At which depot is parcel KX-48213907 now? Give me its code.",
            (Call("track_parcel", {"parcel": "KX-48213907"}),),
            ("D-7153",),
        ),
        Turn("And what is the gate code there?", (Call("depot_gate", {"depot": "D-7153"}),), ("G-5582",)),
    ),
)

_PRICE = Tool(
    "quote",
    "The price of an item in credits, for all pieces together.",
    {
        "item": _text("name of the item"),
        "pieces": _WHOLE,
        "grade": {"type": "string", "enum": ["standard", "marine"], "default": "standard"},
    },
)
_QUOTES = Scenario(
    "same_tool_new_numbers",
    "numbers and an enumerated option, changed turn by turn; the default may be left out",
    (_PRICE,),
    (
        Known(Call("quote", {"item": "copper wire", "pieces": 250}), ({"credits": 18425},)),
        Known(Call("quote", {"item": "copper wire", "pieces": 400}), ({"credits": 28840},)),
        Known(Call("quote", {"item": "copper wire", "pieces": 400, "grade": "marine"}), ({"credits": 41760},)),
    ),
    (
        Turn(
            "What do 250 pieces of copper wire cost?",
            (Call("quote", {"item": "copper wire", "pieces": 250}),),
            ("18425",),
        ),
        Turn("And 400?", (Call("quote", {"item": "copper wire", "pieces": 400}),), ("28840",)),
        Turn(
            "The 400 again, in marine grade.",
            (Call("quote", {"item": "copper wire", "pieces": 400, "grade": "marine"}),),
            ("41760",),
        ),
    ),
)

_LAB = Call("lab_result", {"sample": "LB-60318"})
_RETRY = Scenario(
    "try_again",
    "a tool that fails once and asks to be called again",
    (
        Tool("lab_result", "The result number of a sample.", {"sample": _text("sample code")}),
        Tool("lab_contact", "The number of the lab's desk for a sample.", {"sample": _text("sample code")}),
    ),
    (
        Known(_LAB, ({"error": "busy: call again with the same arguments"}, {"sample": "LB-60318", "result": 73904})),
        Known(Call("lab_contact", {"sample": "LB-60318"}), ({"desk": "DK-4408"},)),
    ),
    (
        Turn("What is the result number of sample LB-60318?", (_LAB, _LAB), ("73904",)),
        Turn("Which desk do I ask about it?", (Call("lab_contact", {"sample": "LB-60318"}),), ("DK-4408",)),
    ),
)

_CUSTOMERS = Scenario(
    "which_of_two",
    "a name that two customers have; the user says which in the second turn",
    (
        Tool("find_customer", "Customers by family name.", {"family_name": _TEXT}),
        Tool("balance", "What a customer owes, in credits.", {"customer": _text("customer code")}),
    ),
    (
        Known(
            Call("find_customer", {"family_name": "Ng"}),
            ([{"customer": "C-4410", "city": "Oslo"}, {"customer": "C-4475", "city": "Bergen"}],),
        ),
        Known(Call("balance", {"customer": "C-4410"}), ({"credits": 1966},)),
        Known(Call("balance", {"customer": "C-4475"}), ({"credits": 7302},)),
    ),
    (
        Turn(
            "Which customer codes do we have under the family name Ng?",
            (Call("find_customer", {"family_name": "Ng"}),),
            ("C-4410", "C-4475"),
        ),
        Turn(
            "I mean the one in Bergen. How many credits does she owe?",
            (Call("balance", {"customer": "C-4475"}),),
            ("7302",),
        ),
    ),
)

_METER = Scenario(
    "no_call_needed",
    "the last turn asks for what was already told: a call is needless",
    (
        Tool("read_meter", "The reading of a meter.", {"meter": _text("meter code")}),
        Tool("meter_place", "The cabinet that a meter stands in.", {"meter": _text("meter code")}),
    ),
    (
        Known(Call("read_meter", {"meter": "M-5521"}), ({"meter": "M-5521", "reading": 48816},)),
        Known(Call("meter_place", {"meter": "M-5521"}), ({"meter": "M-5521", "cabinet": "CB-318"},)),
    ),
    (
        Turn("What does meter M-5521 read?", (Call("read_meter", {"meter": "M-5521"}),), ("48816",)),
        Turn("In which cabinet is it?", (Call("meter_place", {"meter": "M-5521"}),), ("CB-318",)),
        Turn("Tell me the reading and the cabinet again. Do not look them up again.", (), ("48816", "CB-318")),
    ),
)

_CHAIN = Scenario(
    "three_in_a_row",
    "one question that takes three calls, each with a code of the one before",
    (
        Tool("find_order", "The last order of a person.", {"email": _TEXT}),
        Tool("find_shipment", "The shipment of an order.", {"order": _text("order code")}),
        Tool("find_truck", "The truck that carries a shipment.", {"shipment": _text("shipment code")}),
        Tool("truck_bay", "The bay that a truck unloads at.", {"truck": _text("truck code")}),
    ),
    (
        Known(Call("find_order", {"email": "ines@example.org"}), ({"order": "O-77124", "before_it": "O-76998"},)),
        Known(Call("find_shipment", {"order": "O-77124"}), ({"shipment": "S-30958"},)),
        Known(Call("find_shipment", {"order": "O-76998"}), ({"shipment": "S-30411"},)),
        Known(Call("find_truck", {"shipment": "S-30958"}), ({"truck": "TK-6627"},)),
        Known(Call("find_truck", {"shipment": "S-30411"}), ({"truck": "TK-6002"},)),
        Known(Call("truck_bay", {"truck": "TK-6627"}), ({"bay": "BY-140"},)),
    ),
    (
        Turn(
            "Which truck carries the last order of ines@example.org? I only need the truck's code.",
            (
                Call("find_order", {"email": "ines@example.org"}),
                Call("find_shipment", {"order": "O-77124"}),
                Call("find_truck", {"shipment": "S-30958"}),
            ),
            ("TK-6627",),
        ),
        Turn("At which bay does it unload?", (Call("truck_bay", {"truck": "TK-6627"}),), ("BY-140",)),
    ),
)

READING: tuple[Scenario, ...] = (_FOLLOW, _QUOTES, _RETRY, _CUSTOMERS, _METER, _CHAIN)
