"""The record of accelerated calls, and the reports made from it."""
