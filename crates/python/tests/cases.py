"""Counts the cases of this folder's tests: prints a line for each, and a summary that ``package.rs`` reads. Does not import torch."""

FAILED = []
_RAN = []
# Functions to run after each case.
AFTER = []


def check(name, fine, found=""):
    """Counts a case."""
    _RAN.append(name)
    print(f"{'ok  ' if fine else 'FAIL'} {name:76} {str(found)[:300]}", flush=True)
    if not fine:
        FAILED.append(name)


def case(test):
    """Runs a function as a case of its name. It returns whether the case passes, or a tuple of that and the found value."""
    name = test.__name__.replace("_", " ")
    try:
        found = test()
    except Exception as error:  # an unexpected exception fails the case
        found = False, f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        for step in AFTER:
            step()
    check(name, *(found if isinstance(found, tuple) else (found,)))


def near(name, found, wanted, allowed):
    """A case that compares tensors by the relative error in the Euclidean norm."""
    import torch

    found, wanted = torch.as_tensor(found).double().cpu(), wanted.double().cpu()
    error = ((found - wanted).norm() / wanted.norm()).item() if found.shape == wanted.shape else float("nan")
    check(name, error <= allowed, f"{error:.1e}")


def refused(name, call, words, errors=(NotImplementedError, ValueError, TypeError)):
    """A case that must raise one of these errors, with these words in its message."""
    try:
        call()
        found = "nothing was refused"
    except errors as why:
        found = str(why)
    check(name, words in found, found[:120])


def end():
    """Prints the summary and returns the exit code."""
    print(f"{len(_RAN) - len(FAILED)} passed, {len(FAILED)} failed{': ' + str(FAILED) if FAILED else ''}")
    return 1 if FAILED else 0
