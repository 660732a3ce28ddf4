"""Forks while other threads hold trnpy's locks: the child computes and records, and neither side waits for ever."""

import subprocess
import sys

START = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")  # of forking with threads, from Python 3.12 on
import numpy as np
import trnpy
from trnpy._base import locks as _locks

def child(body):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        body()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(code, seconds=60):
    done = subprocess.run(
        [sys.executable, "-c", START + code], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_children_of_a_program_that_records_in_all_threads_compute_and_record():
    codes = run("""
a = np.ones((3, 3))
with trnpy.patched(), trnpy.profile() as ledger:
    def forever():
        while True:
            np.dot(a, a)
            len(ledger.tallies)
            with trnpy.patched():
                pass
    for _ in range(4):
        threading.Thread(target=forever, daemon=True).start()

    def body():
        for _ in range(1000):
            np.dot(a, a)
        with trnpy.patched(), trnpy.profile() as inner:
            np.dot(a, a)
        assert len(inner.tallies) == 1 and sum(t.calls for t in ledger.tallies) >= 1001
    print(*[child(body) for _ in range(20)], flush=True)
    os._exit(0)
""")
    assert codes == ["0"] * 20


def test_a_lock_that_its_holder_keeps_is_new_in_the_child():
    """The fork waits for it as long as it says, not for ever."""
    waited, code, again = run("""
lock, held = _locks.Lock(), threading.Event()
def holder():
    with lock:
        held.set()
        time.sleep(60)
threading.Thread(target=holder, daemon=True).start()
held.wait()
def body():
    with lock:
        pass
started = time.monotonic()
code = child(body)
print(time.monotonic() - started, code, lock.acquire(timeout=0), flush=True)
os._exit(0)
""")
    assert 1 <= float(waited) < 15 and (code, again) == ("0", "False")


def test_who_forks_inside_a_lock_leaves_it_on_both_sides():
    codes = run("""
lock = _locks.Lock()
with lock:
    pid = os.fork()
free = []
other = threading.Thread(target=lambda: free.append(lock.acquire(timeout=5)))
other.start(); other.join()
assert free == [True]
if not pid:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert codes == ["0"]


def test_two_threads_fork_at_once():
    codes = run("""
locks, codes = [_locks.Lock() for _ in range(50)], []
def body():
    for lock in locks:
        with lock:
            pass
def forks():
    codes.extend(child(body) for _ in range(10))
threads = [threading.Thread(target=forks) for _ in range(4)]
started = time.monotonic()
for t in threads: t.start()
for t in threads: t.join()
print(*codes)
""")
    assert codes == ["0"] * 40
