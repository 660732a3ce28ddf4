"""The collector is suspended while modules load, and never longer."""

import gc
import os
import threading

import pytest

from trnpy._base.garbage import not_collected


def test_a_block_leaves_the_collector_as_it_was():
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(ImportError), not_collected():
                assert not gc.isenabled()
                with not_collected():
                    pass
                assert not gc.isenabled()  # until the outermost block ends
                raise ImportError
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_loads_collects_garbage():
    loading, forked = threading.Event(), threading.Event()

    def load():
        with not_collected():
            loading.set()
            forked.wait()

    thread = threading.Thread(target=load)
    thread.start()
    loading.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    _, status = os.waitpid(child, 0)
    assert not gc.isenabled()
    forked.set()
    thread.join()
    assert (os.waitstatus_to_exitcode(status), gc.isenabled()) == (0, True)
