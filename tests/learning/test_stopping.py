import signal

from parcae.learning.stopping import stopping


def test_the_first_interrupt_asks_and_the_handler_is_given_back():
    before = signal.getsignal(signal.SIGINT)
    with stopping() as stop:
        assert not stop.is_requested
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
    assert signal.getsignal(signal.SIGINT) is before
