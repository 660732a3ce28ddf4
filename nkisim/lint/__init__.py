"""The rules of the hardware and of the compiler, with the front ends for which they hold."""
