"""Cases of this folder's tests: a line for each, and a summary that ``package.rs`` reads. It imports no torch."""

FAILED = []
_RAN = []
# What runs after each case.
AFTER = []


def check(name, fine, found=""):
    """Counts a case."""
    _RAN.append(name)
    print(f"{'ok  ' if fine else 'FAIL'} {name:76} {str(found)[:300]}", flush=True)
    if not fine:
        FAILED.append(name)


def case(test):
    """Runs a function whose name says the case, and counts it. It returns whether the case is fine, or that and what was found."""
    name = test.__name__.replace("_", " ")
    try:
        found = test()
    except Exception as error:  # any exception that the case did not expect
        found = False, f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        for step in AFTER:
            step()
    check(name, *(found if isinstance(found, tuple) else (found,)))


def near(name, found, wanted, allowed):
    """A case whose tensors may differ by a relative error in the Euclidean norm."""
    import torch

    found, wanted = torch.as_tensor(found).double().cpu(), wanted.double().cpu()
    error = ((found - wanted).norm() / wanted.norm()).item() if found.shape == wanted.shape else float("nan")
    check(name, error <= allowed, f"{error:.1e}")


def refused(name, call, words, errors=(NotImplementedError, ValueError, TypeError)):
    """A case that has to raise one of these errors, with these words."""
    try:
        call()
        found = "nothing was refused"
    except errors as why:
        found = str(why)
    check(name, words in found, found[:120])


def end():
    """Prints the summary and gives the exit code."""
    print(f"{len(_RAN) - len(FAILED)} passed, {len(FAILED)} failed{': ' + str(FAILED) if FAILED else ''}")
    return 1 if FAILED else 0
