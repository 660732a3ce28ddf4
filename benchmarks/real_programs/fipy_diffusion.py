"""FiPy: diffusion and convection on a square, implicit in time."""

from fipy import CellVariable, DiffusionTerm, Grid2D, PowerLawConvectionTerm, TransientTerm

mesh = Grid2D(nx=40, ny=40, dx=1.0, dy=1.0)
phi = CellVariable(name="concentration", mesh=mesh, value=0.0, hasOld=True)
phi.constrain(1.0, mesh.facesLeft)
phi.constrain(0.0, mesh.facesRight)
equation = TransientTerm() == DiffusionTerm(coeff=1.0) - PowerLawConvectionTerm(coeff=((0.1,), (0.2,)))
for _ in range(30):
    phi.updateOld()
    for _ in range(2):
        equation.sweep(var=phi, dt=2.0)
print(float(phi.value.mean()))
