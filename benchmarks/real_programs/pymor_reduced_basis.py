"""pyMOR: a reduced basis of a thermal block with four parameters, by a greedy algorithm, and its errors."""

from pymor.basic import (
    CoerciveRBReductor,
    ExpressionParameterFunctional,
    discretize_stationary_cg,
    rb_greedy,
    set_log_levels,
    thermal_block_problem,
)

set_log_levels({"pymor": "ERROR"})
problem = thermal_block_problem(num_blocks=(2, 2))
fom, _ = discretize_stationary_cg(problem, diameter=1 / 40)
reductor = CoerciveRBReductor(
    fom,
    product=fom.h1_0_semi_product,
    coercivity_estimator=ExpressionParameterFunctional("min(diffusion)", fom.parameters),
)
space = problem.parameter_space
greedy = rb_greedy(fom, reductor, space.sample_uniformly(3), max_extensions=12)
rom = greedy["rom"]
for mu in space.sample_randomly(40):
    difference = fom.solve(mu) - reductor.reconstruct(rom.solve(mu))
print(difference.norm(fom.h1_0_semi_product))
