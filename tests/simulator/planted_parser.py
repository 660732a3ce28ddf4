"""One planted construct for each refusal of the parsing front end, in its words, and a twin that it takes."""

from __future__ import annotations

from tests.simulator.planted import body, given

INNER = "NKI does not support inner function definitions"
SUBSCRIPT = "string subscript not implemented"
BODY = "inner functions can only be used as fori_loop/while_loop body arguments"

# Name, statements that are refused, words of the refusal, statements that do the same and pass.
PARSER = (
    ("tuple target", ("n = 0", "for a, b in ((1, 2),):", "    n = a + b"), "expecting simple variable",
     ("n = 0", "for pair in ((1, 2),):", "    a, b = pair", "    n = a + b")),
    ("list comprehension", ("n = [2 * i for i in range(3)]",), "unsupported expression",
     ("n = []", "for i in range(3):", "    n.append(2 * i)")),
    ("dict comprehension", ("n = {str(i): i for i in range(3)}",), "unsupported expression", ("n = {'a': 0}",)),
    ("set comprehension", ("n = {i for i in range(3)}",), "unsupported expression", ("n = [0, 1, 2]",)),
    ("generator", ("n = max(i for i in range(3))",), "unsupported expression", ("n = max(1, 2)",)),
    ("lambda", ("n = lambda v: v",), "unsupported expression", ("n = 1",)),
    ("yield", ("yield t",), "unsupported expression", ("n = 1",)),
    ("walrus", ("if (n := 2) > 1:", "    n = 3"), "unsupported expression", ("n = 2", "if n > 1:", "    n = 3")),
    ("inner function", ("def half(v):", "    return v"), INNER,
     ("def step(i):", "    nisa.tensor_copy(dst=t, src=t)", "nl.fori_loop(0, 2, step)")),
    ("loop body called", ("def step(i):", "    nisa.tensor_copy(dst=t, src=t)", "nl.fori_loop(0, 2, step)", "step(0)"),
     BODY,
     ("def step(i, t=t):", "    nisa.tensor_copy(dst=t, src=t)", "nl.fori_loop(0, 2, step)")),
    ("partial as body", ("nl.fori_loop(0, 2, functools.partial(turn, t=t))",), BODY,
     ("def step(i):", "    turn(i, t)", "nl.fori_loop(0, 2, step)")),
    ("keyword expansion", ("more = {'src': t}", "nisa.tensor_copy(dst=t, **more)"),
     "keyword expansion is not supported",
     ("more = {'src': t}", "nisa.tensor_copy(dst=t, src=more['src'])")),
    ("star argument", ("n = min(*x.shape)",), "tuple expansion is not supported", ("n = min(x.shape[0], x.shape[1])",)),
    ("with statement", ("with open('f'):", "    n = 1"), "does not support 'with'",
     ("with nl.no_reorder():", "    n = 1")),
    ("class", ("class Inner:", "    n = 1"), "does not support 'class'", ("n = 1",)),
    ("del", ("n = 1", "del n"), "does not support 'del'", ("n = 1",)),
    ("match", ("match x.shape[0]:", "    case 128:", "        n = 1"), "does not support 'match'",
     ("if x.shape[0] == 128:", "    n = 1")),
    ("raise", ("if x.shape[0] > 128:", "    raise ValueError('rows')"), "does not support 'raise'",
     ("assert x.shape[0] <= 128",)),
    ("try", ("try:", "    n = 1", "except ValueError:", "    n = 2"), "unsupported statement", ("n = 1",)),
    ("import", ("import sys", "n = sys"), "failed to resolve name 'sys'", ("n = 1",)),
    ("number as key", ("n = {1: 2}",), "expecting string", ("n = {'1': 2}",)),
    ("dictionary iterated", ("d = {'a': 1}", "for key in d:", "    n = key"), "not an iterable object",
     ("d = {'a': 1}", "for key in d.keys():", "    n = key")),
    ("in a frozenset", ("n = x.shape[0] in frozenset((1, 2))",), "'in' operator", ("n = x.shape[0] in (1, 2)",)),
    ("three-argument min", ("n = min(1, 2, 3)",), "invalid arguments: min", ("n = min(min(1, 2), 3)",)),
    ("one-argument max", ("n = max(x.shape)",), "invalid arguments: max", ("n = max(x.shape[0], x.shape[1])",)),
    ("enumerate", ("for pair in enumerate(x.shape):", "    n = pair"), "failed to resolve name 'enumerate'",
     ("for i in range(len(x.shape)):", "    n = x.shape[i]")),
    ("zip", ("for pair in zip(x.shape, x.shape):", "    n = pair"), "failed to resolve name 'zip'",
     ("for i in range(2):", "    n = (x.shape[i], x.shape[i])")),
    ("sum", ("n = sum(x.shape)",), "failed to resolve name 'sum'", ("n = x.shape[0] + x.shape[1]",)),
    ("sorted", ("n = sorted(x.shape)",), "failed to resolve name 'sorted'", ("n = list(x.shape)",)),
    ("format", ("n = f'{x.shape[0]:4d}'",), "unsupported format specifier", ("n = f'{x.shape[0]}'",)),
    ("string subscript", ("word = 'abc'", "n = word[0]"), "string subscript not implemented",
     ("word = ('a', 'b')", "n = word[0]")),
    ("floor by a negative", ("n = 7 // -2",), "Euclidean", ("n = -7 // 2",)),
    ("remainder by a negative", ("n = 7 % -2",), "Euclidean", ("n = -7 % 2",)),
    ("floor by a negative name", ("d = -2", "n = 7 // d"), "Euclidean", ("d = 2", "n = -7 // d")),
    ("floor in place", ("n = 7", "n //= -2"), "Euclidean", ("n = -7", "n //= 2")),
    ("remainder by a negative default", ("def step(i, d=-2):", "    n = 7 % d", "nl.fori_loop(0, 2, step)"),
     "Euclidean", ("def step(i, d=2):", "    n = 7 % d", "nl.fori_loop(0, 2, step)")),
    ("dict() iterated", ("d = dict(a=1)", "for key in d:", "    n = key"), "not an iterable object",
     ("d = dict(a=1)", "for key in d.keys():", "    n = key")),
    ("dict() iterated at once", ("for key in dict(a=1):", "    n = key"), "not an iterable object",
     ("for key in dict(a=1).keys():", "    n = key")),
    ("for else", ("for i in range(2):", "    n = i", "else:", "    n = 3"), "for-orelse is not supported",
     ("for i in range(2):", "    n = i")),
    ("element in a tuple target", ("d = [1, 2]", "d[0], d[1] = d[1], d[0]"), "expecting pattern",
     ("d = [1, 2]", "first, last = d[1], d[0]")),
    ("matmul operator", ("n = t @ t",), "matmul operator", ("n = 1",)),
)  # fmt: skip

# Name, kernel that is refused, words of the refusal, kernel that does the same and passes.
SIGNATURES = (
    ("keyword-only", given(body(), "x, *, n=1"), "keyword-only arguments are not supported", given(body(), "x, n=1")),
    ("star arguments", given(body(), "x, *rest"), "varargs are not supported in NKI", given(body(), "x, rest=()")),
    ("subscript of a default", given(body("n = word[0]"), "x, word='ab'"), SUBSCRIPT,
     given(body("n = word[0]"), "x, word=('a', 'b')")),
    ("subscript of a str", given(body("n = word[0]"), "x, word: str"), SUBSCRIPT,
     given(body("n = word[0]"), "x, word: tuple")),
    ("subscript of a global", "WORD = 'ab'\n" + body("n = WORD[0]"), SUBSCRIPT,
     "WORD = ('a', 'b')\n" + body("n = WORD[0]")),
    ("decorator", "@functools.cache\ndef half(n):\n    return n // 2\n" + body("n = half(4)"), "unsupported decorator",
     "def half(n):\n    return n // 2\n" + body("n = half(4)")),
)  # fmt: skip
