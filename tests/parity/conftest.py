"""After a search: the largest share of its bound that each error of each row took."""

from hypothesis import settings


def pytest_terminal_summary(terminalreporter):
    if settings.default.derandomize:
        return
    reports = [r for key in ("passed", "failed") for r in terminalreporter.stats.get(key, ())]
    found = {r.nodeid: dict(r.user_properties)["shares"] for r in reports if "shares" in dict(r.user_properties)}
    for name, shares in sorted(found.items()):
        told = ", ".join(f"{error} {share:.3f}" for error, share in shares.items())
        terminalreporter.line(f"{name.partition('[')[2].rstrip(']')}: {told}")
