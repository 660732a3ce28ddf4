"""The rules of the hardware and of the compiler, and the front ends that enforce each rule."""
