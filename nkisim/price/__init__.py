"""The cost model: durations, dependencies, and the schedule of the engines."""
