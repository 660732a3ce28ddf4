"""python-control: a regulator, an observer, responses and margins of a linearised pendulum on a cart."""

import control
import numpy as np

a = np.array([[0, 1, 0, 0], [0, -0.1, 3, 0], [0, 0, 0, 1], [0, -0.5, 30, 0.0]])
b = np.array([[0.0], [2], [0], [5]])
plant = control.ss(a, b, np.eye(4), np.zeros((4, 1)))
for weight in np.linspace(1, 10, 12):
    gain, _, _ = control.lqr(a, b, weight * np.eye(4), np.eye(1))
    closed = control.ss(a - b @ gain, b, np.eye(4), np.zeros((4, 1)))
    response = control.step_response(closed, T=np.linspace(0, 5, 400))
    control.initial_response(closed, T=np.linspace(0, 5, 400), initial_state=[0, 0, 0.1, 0])
    control.frequency_response(closed, np.logspace(-2, 2, 200))
print(response.outputs[0, 0, -1], closed.poles())
