"""From the syntax tree to closures.

Each node becomes one function of a `Document`. There are two kinds of them: `Scalar` gives one
value (of an array its first), `Several` gives all elements of an array. Comparisons, BETWEEN, IN,
LIKE, BEGINS and ENDS WITH ask `Several` and are true when any element, or any pair, satisfies them;
arithmetic, functions, IS NULL and the logic ask `Scalar`.

Logic follows the server's documentation; a NULL on the left of AND or OR gives NULL. As comparisons
give false and never NULL, `NOT /a = 1` is true when `/a` is missing. A filter matches when its
result is true; NULL is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, assert_never

from haclient_fake_server.engine.filters.document import Document
from haclient_fake_server.engine.filters.functions import FUNCTIONS, Argument
from haclient_fake_server.engine.filters.parser import (
    Affix,
    AllOf,
    AnyOf,
    Between,
    Call,
    Chain,
    Compare,
    Field,
    FilterError,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    parse_filter,
)
from haclient_fake_server.engine.filters.values import (
    COMPARISONS,
    Comparison,
    Number,
    Value,
    calculate,
    compare,
    number_from,
    text_of,
    truth,
)
from haclient_fake_server.engine.patterns import Find, PatternError, compile_find, compile_search

Filter: TypeAlias = Callable[[Document], bool]
Scalar: TypeAlias = Callable[[Document], Value]
Several: TypeAlias = Callable[[Document], Sequence[Value]]
Test: TypeAlias = Callable[[Value], bool]

_EQUAL: Final = COMPARISONS["="]
_AT_LEAST: Final = COMPARISONS[">="]
_AT_MOST: Final = COMPARISONS["<="]


def compile_filter(text: str) -> Filter:
    """The test that the filter `text` describes.

    Compile once and call for each message; the result keeps no state, so it may be shared.

    Raises:
        FilterError: The text is not a filter, or too long, too deep, or holds a bad pattern.
    """
    result = _scalar(parse_filter(text))

    def matches(document: Document) -> bool:
        answer = result(document)
        return answer if isinstance(answer, bool) else truth(answer) is True

    return matches


def compile_expression(text: str) -> Scalar:
    """The value that the expression `text` describes, such as `/priority` or `/a + 2 * /b`.

    Raises:
        FilterError: The text is not an expression, or too long, too deep, or holds a bad pattern.
    """
    return _scalar(parse_filter(text))


def _scalar(node: Node) -> Scalar:
    match node:
        case Literal(value):
            return lambda _: value
        case Field(path):
            return lambda document: document.first(path)
        case Negate() | Chain() | Call():
            return _computed(node)
        case Not() | AllOf() | AnyOf():
            return _logic(node)
        case _:
            return _test(node)


def _computed(node: Negate | Chain | Call) -> Scalar:
    match node:
        case Negate(operand):
            return _negate(_scalar(operand))
        case Chain(first, rest):
            return _chain(_scalar(first), [(symbol, _scalar(part)) for symbol, part in rest])
        case Call():
            return _call(node)
        case _:
            assert_never(node)


def _logic(node: Not | AllOf | AnyOf) -> Scalar:
    match node:
        case Not(operand):
            return _not(_scalar(operand))
        case AllOf(parts):
            return _all_of([_scalar(part) for part in parts])
        case AnyOf(parts):
            return _any_of([_scalar(part) for part in parts])
        case _:
            assert_never(node)


def _test(node: Compare | Between | In | Like | Affix | IsNull | IsNan) -> Scalar:
    match node:
        case Compare(symbol, left, right):
            return _compare(COMPARISONS[symbol], _several(left), right)
        case Between():
            return _between(node)
        case In(operand, choices):
            return _in(_several(operand), choices)
        case Like():
            return _any_element(_several(node.operand), _like(node))
        case Affix(operand, choices, ends):
            return _affix(_several(operand), [_several(choice) for choice in choices], ends=ends)
        case IsNull() | IsNan():
            check = _is_null if isinstance(node, IsNull) else _is_nan
            return check(_scalar(node.operand))
        case _:
            assert_never(node)


def _several(node: Node) -> Several:
    if isinstance(node, Field):
        path = node.path
        return lambda document: document.values(path)
    scalar = _scalar(node)
    return lambda document: (scalar(document),)


# --- functions ----------------------------------------------------------


def _call(node: Call) -> Scalar:
    function = FUNCTIONS[node.name]
    arguments: list[Callable[[Document], Argument]] = []
    for index, each in enumerate(node.arguments):
        if index == function.pattern_at:
            arguments.append(_constant(_pattern(each, node.position)))
        else:
            arguments.append(
                _several(each) if function.takes_array and not index else _scalar(each)
            )
    return lambda document: function.call([argument(document) for argument in arguments])


def _constant(found: Find) -> Callable[[Document], Argument]:
    return lambda _: found


def _pattern(node: Node, position: int) -> Find:
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        raise FilterError(position, expected="a pattern in quotes", found="something else")
    try:
        return compile_find(node.value)
    except PatternError as error:
        raise _bad_pattern(position, error) from error


def _bad_pattern(position: int, error: PatternError) -> FilterError:
    return FilterError(position, expected="a regular expression", found=str(error))


# --- arithmetic ---------------------------------------------------------


def _negate(operand: Scalar) -> Scalar:
    return lambda document: calculate("-", 0, operand(document))


def _chain(first: Scalar, rest: list[tuple[str, Scalar]]) -> Scalar:
    def run(document: Document) -> Value:
        result = first(document)
        for symbol, operand in rest:
            result = calculate(symbol, result, operand(document))
        return result

    return run


# --- logic --------------------------------------------------------------


def _not(operand: Scalar) -> Scalar:
    def run(document: Document) -> Value:
        answer = truth(operand(document))
        return None if answer is None else not answer

    return run


def _all_of(parts: list[Scalar]) -> Scalar:
    def run(document: Document) -> Value:
        for part in parts:
            answer = truth(part(document))
            if answer is not True:
                return answer
        return True

    return run


def _any_of(parts: list[Scalar]) -> Scalar:
    def run(document: Document) -> Value:
        for part in parts:
            answer = truth(part(document))
            if answer is not False:
                return answer
        return False

    return run


# --- tests that any element may satisfy -----------------------------------


def _compare(test: Comparison, left: Several, right: Node) -> Scalar:
    if isinstance(right, Literal):
        return _any_element(left, _compared_with(right.value, test))
    return _comparison(test, left, _several(right))


def _comparison(test: Comparison, left: Several, right: Several) -> Scalar:
    def run(document: Document) -> bool:
        others = right(document)
        for one in left(document):  # the most frequent test of all: loops, not a generator
            for other in others:
                if compare(test, one, other):
                    return True
        return False

    return run


def _compared_with(constant: Value, test: Comparison) -> Test:
    """`compare` with a constant, without its checks for values of the same kind."""
    kinds: tuple[type, ...] = (str,) if isinstance(constant, str) else (int, float)
    if constant is None:
        kinds = ()
    return lambda value: (
        test(value, constant) if type(value) in kinds else compare(test, value, constant)
    )


def _between(node: Between) -> Scalar:
    operand, low, high = _several(node.operand), _several(node.low), _several(node.high)
    if isinstance(node.low, Literal) and isinstance(node.high, Literal):
        at_least = _compared_with(node.low.value, _AT_LEAST)
        at_most = _compared_with(node.high.value, _AT_MOST)
        return _any_element(operand, lambda value: at_least(value) and at_most(value))

    def run(document: Document) -> bool:
        lows, highs = low(document), high(document)
        return any(
            any(compare(_AT_LEAST, one, limit) for limit in lows)
            and any(compare(_AT_MOST, one, limit) for limit in highs)
            for one in operand(document)
        )

    return run


def _in(operand: Several, choices: tuple[Node, ...]) -> Scalar:
    constants = [choice.value for choice in choices if isinstance(choice, Literal)]
    if len(constants) == len(choices):
        return _any_element(operand, _one_of(constants))
    tests = [_comparison(_EQUAL, operand, _several(choice)) for choice in choices]
    return lambda document: any(test(document) for test in tests)


def _one_of(constants: list[Value]) -> Test:
    """Equality with any of many constants, at the price of one or two look-ups."""
    texts = {constant for constant in constants if isinstance(constant, str)}
    numbers = {constant for constant in constants if isinstance(constant, int | float)}
    spelled = {number for text in texts if (number := number_from(text)) is not None}
    either: set[Number] = numbers | spelled

    def test(value: Value) -> bool:
        if isinstance(value, str):
            return value in texts or (bool(numbers) and number_from(value) in numbers)
        return value in either

    return test


def _like(node: Like) -> Test:
    if node.raw:
        return lambda value: node.pattern in text_of(value) if value is not None else False
    try:
        search = compile_search(node.pattern)
    except PatternError as error:
        raise _bad_pattern(node.position, error) from error
    return lambda value: search(text_of(value)) if value is not None else False


def _affix(operand: Several, choices: list[Several], *, ends: bool) -> Scalar:
    has = str.endswith if ends else str.startswith

    def run(document: Document) -> bool:
        affixes = tuple(
            text_of(value) for choice in choices for value in choice(document) if value is not None
        )
        return any(has(text_of(one), affixes) for one in operand(document) if one is not None)

    return run


def _any_element(operand: Several, test: Test) -> Scalar:
    def run(document: Document) -> bool:
        for value in operand(document):  # noqa: SIM110  # a generator would take half of the time
            if test(value):
                return True
        return False

    return run


def _is_null(operand: Scalar) -> Scalar:
    return lambda document: operand(document) is None


def _is_nan(operand: Scalar) -> Scalar:
    def run(document: Document) -> bool:
        value = operand(document)
        return isinstance(value, float) and math.isnan(value)

    return run
