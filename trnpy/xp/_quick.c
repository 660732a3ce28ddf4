/* The compiled part of trnpy.Array: operations on Arrays whose values are known go straight to NumPy.

   ``Held`` has the fields of an Array, and operators that call NumPy's if both operands are small Arrays, views of them,
   numbers or NumPy's arrays. All other operands go to the Python functions of trnpy/xp/_operators.py, which do the same
   without a compiler. ``Direct`` is a function of trnpy.xp: NumPy's function for small Arrays, else a Python function. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#include <stddef.h>
#include <structmember.h>

enum { OPERANDS = 4 }; /* functions with more positional operands are called through Python */

typedef struct {
    PyObject_HEAD
    PyObject *value, *node, *base, *steps, *from, *weak;
} Held;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *fast, *slow, *names, *attributes;
    Py_ssize_t operands;
    int keeps; /* whether it is a ufunc that preserves the floating dtype of its operands */
} Direct;

static struct {
    PyTypeObject *array;                /* trnpy.Array */
    PyObject *of, *item, *matmul;       /* Array._of, the function of an index, the accelerated matmul */
    PyObject *turned, *slow, *empty;    /* the step to a transpose, the Python functions by number, () */
    PyObject *ufuncs, *out;             /* add, subtract, multiply, true_divide; ("out",) */
    npy_intp small;                     /* the most elements of a small Array */
} known;

/* The array of a small Array or of a view of one, if it is up to date; else NULL. */
static PyObject *
array_of(PyObject *x)
{
    Held *held = (Held *)x;
    if (held->value != NULL && held->value != Py_None)
        return held->value;
    if (held->base == NULL || Py_TYPE(held->base) != known.array)
        return NULL;
    PyObject *source = ((Held *)held->base)->value;
    if (source == NULL || source == Py_None || held->from != source || !PyArray_CheckExact(held->node))
        return NULL;
    return held->node;
}

/* The operand for NumPy, borrowed; NULL if Python must decide. */
static PyObject *
operand(PyObject *x)
{
    if (Py_TYPE(x) == known.array)
        return array_of(x);
    if (PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyBool_Check(x) || PyComplex_CheckExact(x))
        return x;
    if (PyArray_CheckExact(x))
        return PyTypeNum_ISNUMBER(PyArray_TYPE((PyArrayObject *)x)) && PyArray_SIZE((PyArrayObject *)x) <= known.small
                   ? x : NULL;
    return PyArray_IsScalar(x, Number) || PyArray_IsScalar(x, Bool) ? x : NULL;
}

/* The memory of an Array that may be written now; NULL if Python must decide. */
static PyObject *
memory_of(PyObject *x)
{
    Held *held = (Held *)x;
    PyObject *array = array_of(x);
    if (array == NULL || !PyArray_ISWRITEABLE((PyArrayObject *)array))
        return NULL;
    if (array == held->value)
        return array;
    PyObject *source = ((Held *)held->base)->value, *base = PyArray_BASE((PyArrayObject *)array);
    if (!PyArray_ISWRITEABLE((PyArrayObject *)source) || base == NULL)
        return NULL;
    return base == source || base == PyArray_BASE((PyArrayObject *)source) ? array : NULL;
}

/* The result of NumPy as an Array. Steals the reference. */
static PyObject *
wrapped(PyObject *found)
{
    if (found == NULL || found == Py_NotImplemented)
        return found;
    if (!PyArray_CheckExact(found)) {
        PyObject *array = PyArray_EnsureArray(found);
        if (array == NULL)
            return NULL;
        found = array;
    }
    if (PyArray_SIZE((PyArrayObject *)found) > known.small) {
        PyObject *made = PyObject_CallOneArg(known.of, found);
        Py_DECREF(found);
        return made;
    }
    Held *made = (Held *)known.array->tp_alloc(known.array, 0);
    if (made == NULL) {
        Py_DECREF(found);
        return NULL;
    }
    made->value = found;
    made->steps = Py_NewRef(known.empty);
    return (PyObject *)made;
}

static PyObject *
slow(int which, PyObject *a, PyObject *b)
{
    return PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(known.slow, which), a, b, NULL);
}

/* Arrays whose last Array was freed. The next result of the same shape is written into one of them: the system maps
   fresh memory of this size page by page, which takes longer than the operation. */
enum { SPARE = 4, LEAST_BYTES = 1 << 17 };
static struct { PyArrayObject *arrays[SPARE]; int next; } spare;

/* Keep the array of an Array that is freed, if it has no other reference; the list then owns the reference. */
static int
kept(PyObject *value)
{
    PyArrayObject *array = (PyArrayObject *)value;
    if (value == NULL || Py_REFCNT(value) != 1 || !PyArray_CheckExact(value) || PyArray_BASE(array) != NULL)
        return 0;
    if (PyArray_NBYTES(array) < LEAST_BYTES || !PyArray_ISCARRAY(array) || !PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA)
        || (PyArray_TYPE(array) != NPY_DOUBLE && PyArray_TYPE(array) != NPY_FLOAT))
        return 0;
    for (int i = 0; i < SPARE; i++)
        if (spare.arrays[i] == NULL) {
            spare.arrays[i] = array;
            return 1;
        }
    PyArrayObject *former = spare.arrays[spare.next];
    spare.arrays[spare.next] = array;
    spare.next = (spare.next + 1) % SPARE;
    Py_DECREF(former);
    return 1;
}

/* A kept array with the shape and the dtype of another, or NULL; the caller owns the reference. */
static PyObject *
like(PyArrayObject *x)
{
    for (int i = 0; i < SPARE; i++) {
        PyArrayObject *array = spare.arrays[i];
        if (array != NULL && PyArray_TYPE(array) == PyArray_TYPE(x) && PyArray_NDIM(array) == PyArray_NDIM(x)
            && PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(x), PyArray_NDIM(x))) {
            spare.arrays[i] = NULL;
            return (PyObject *)array;
        }
    }
    return NULL;
}

static int
number(PyObject *x)
{
    return PyFloat_CheckExact(x) || PyLong_CheckExact(x);
}

/* Whether the result of an elementwise function has the shape and the dtype of its operand x, in C order. */
static int
as_first(PyObject *x, PyObject *y)
{
    PyArrayObject *a = (PyArrayObject *)x, *b = (PyArrayObject *)y;
    if (!PyArray_CheckExact(x) || PyArray_NBYTES(a) < LEAST_BYTES || !PyArray_ISCARRAY_RO(a))
        return 0;
    if (y == NULL || number(y))
        return 1;
    if (!PyArray_CheckExact(y) || PyArray_TYPE(a) != PyArray_TYPE(b) || !PyArray_ISCARRAY_RO(b))
        return 0;
    int extra = PyArray_NDIM(a) - PyArray_NDIM(b);
    for (int i = 0; extra >= 0 && i < PyArray_NDIM(b); i++)
        if (PyArray_DIM(b, i) != 1 && PyArray_DIM(b, i) != PyArray_DIM(a, extra + i))
            return 0;
    return extra >= 0;
}

/* Kept memory for the result of an elementwise function of one or two operands, or NULL. */
static PyObject *
memory_for(PyObject *x, PyObject *y)
{
    PyObject *first = as_first(x, y) ? x : y != NULL && as_first(y, x) ? y : NULL;
    return first == NULL ? NULL : like((PyArrayObject *)first);
}

enum { ADD, SUB, MUL, TRUEDIV, SPARED };

/* The result of NumPy, in kept memory if there is any. */
static PyObject *
computed(PyObject *x, PyObject *y, binaryfunc function, int which)
{
    if (which < SPARED) {
        PyObject *out = memory_for(x, y);
        if (out != NULL) {
            PyObject *operands[] = {x, y, out};
            PyObject *found = PyObject_Vectorcall(PyTuple_GET_ITEM(known.ufuncs, which), operands, 3, NULL);
            Py_DECREF(out);
            return found;
        }
    }
    return function(x, y);
}

static PyObject *
binary(PyObject *a, PyObject *b, binaryfunc function, int which)
{
    PyObject *x = operand(a), *y = operand(b);
    if (x == NULL || y == NULL)
        return slow(which, a, b);
    Py_INCREF(x);
    Py_INCREF(y);
    PyObject *found = computed(x, y, function, which);
    Py_DECREF(x);
    Py_DECREF(y);
    return wrapped(found);
}

static PyObject *
unary(PyObject *a, unaryfunc function, int which)
{
    PyObject *x = array_of(a);
    if (x == NULL)
        return slow(which, a, NULL);
    Py_INCREF(x);
    PyObject *found = function(x);
    Py_DECREF(x);
    return wrapped(found);
}

static PyObject *
in_place(PyObject *a, PyObject *b, binaryfunc function, int which)
{
    PyObject *x = memory_of(a), *y = operand(b);
    if (x == NULL || y == NULL)
        return slow(which, a, b);
    Py_INCREF(x);
    Py_INCREF(y);
    PyObject *found = function(x, y);
    int same = found == x;
    Py_DECREF(x);
    Py_DECREF(y);
    if (found == NULL)
        return NULL;
    Py_DECREF(found);
    return same ? Py_NewRef(a) : slow(which, a, b);
}

static PyObject *power(PyObject *a, PyObject *b) { return PyNumber_Power(a, b, Py_None); }
static PyObject *power_in_place(PyObject *a, PyObject *b) { return PyNumber_InPlacePower(a, b, Py_None); }

/* The order of the Python functions, which must be the order in trnpy/xp/_operators.py. */
enum {
    FLOORDIV = SPARED, MOD, POW, AND, OR, XOR, LSHIFT, RSHIFT, MATMUL,
    IADD, ISUB, IMUL, ITRUEDIV, IFLOORDIV, IMOD, IPOW, IAND, IOR, IXOR, ILSHIFT, IRSHIFT, IMATMUL,
    NEG, POS, ABS, INVERT, LT, LE, EQ, NE, GT, GE, GETITEM, SETITEM, MT, T, COUNT
};

#define BINARY(name, function, which) \
    static PyObject *name(PyObject *a, PyObject *b) { return binary(a, b, function, which); }
#define IN_PLACE(name, function, which) \
    static PyObject *name(PyObject *a, PyObject *b) { return in_place(a, b, function, which); }
#define UNARY(name, function, which) \
    static PyObject *name(PyObject *a) { return unary(a, function, which); }

BINARY(nb_add, PyNumber_Add, ADD)
BINARY(nb_sub, PyNumber_Subtract, SUB)
BINARY(nb_mul, PyNumber_Multiply, MUL)
BINARY(nb_truediv, PyNumber_TrueDivide, TRUEDIV)
BINARY(nb_floordiv, PyNumber_FloorDivide, FLOORDIV)
BINARY(nb_mod, PyNumber_Remainder, MOD)
BINARY(nb_and, PyNumber_And, AND)
BINARY(nb_or, PyNumber_Or, OR)
BINARY(nb_xor, PyNumber_Xor, XOR)
BINARY(nb_lshift, PyNumber_Lshift, LSHIFT)
BINARY(nb_rshift, PyNumber_Rshift, RSHIFT)
IN_PLACE(nb_iadd, PyNumber_InPlaceAdd, IADD)
IN_PLACE(nb_isub, PyNumber_InPlaceSubtract, ISUB)
IN_PLACE(nb_imul, PyNumber_InPlaceMultiply, IMUL)
IN_PLACE(nb_itruediv, PyNumber_InPlaceTrueDivide, ITRUEDIV)
IN_PLACE(nb_ifloordiv, PyNumber_InPlaceFloorDivide, IFLOORDIV)
IN_PLACE(nb_imod, PyNumber_InPlaceRemainder, IMOD)
IN_PLACE(nb_iand, PyNumber_InPlaceAnd, IAND)
IN_PLACE(nb_ior, PyNumber_InPlaceOr, IOR)
IN_PLACE(nb_ixor, PyNumber_InPlaceXor, IXOR)
IN_PLACE(nb_ilshift, PyNumber_InPlaceLshift, ILSHIFT)
IN_PLACE(nb_irshift, PyNumber_InPlaceRshift, IRSHIFT)
UNARY(nb_neg, PyNumber_Negative, NEG)
UNARY(nb_pos, PyNumber_Positive, POS)
UNARY(nb_abs, PyNumber_Absolute, ABS)
UNARY(nb_invert, PyNumber_Invert, INVERT)

static PyObject *
matmul(PyObject *a, PyObject *b)
{
    PyObject *operands[] = {a, b};
    return PyObject_Vectorcall(known.matmul, operands, 2, NULL);
}

static PyObject *
nb_matmul(PyObject *a, PyObject *b)
{
    PyObject *x = operand(a), *y = operand(b);
    if (x == NULL || y == NULL || !PyArray_CheckExact(x) || !PyArray_CheckExact(y))
        return slow(MATMUL, a, b);
    return binary(a, b, matmul, MATMUL);
}

static PyObject *nb_imatmul(PyObject *a, PyObject *b) { return slow(IMATMUL, a, b); }

static PyObject *
nb_pow(PyObject *a, PyObject *b, PyObject *modulus)
{
    return modulus == Py_None ? binary(a, b, power, POW) : Py_NewRef(Py_NotImplemented);
}

static PyObject *
nb_ipow(PyObject *a, PyObject *b, PyObject *modulus)
{
    return in_place(a, b, power_in_place, IPOW);
}

static PyObject *
compared(PyObject *a, PyObject *b, int relation)
{
    PyObject *x = operand(a), *y = operand(b);
    if (x == NULL || y == NULL)
        return slow(LT + relation, a, b); /* Py_LT is 0, and the others follow */
    Py_INCREF(x);
    Py_INCREF(y);
    PyObject *found = PyObject_RichCompare(x, y, relation);
    Py_DECREF(x);
    Py_DECREF(y);
    return wrapped(found);
}

static int
basic_item(PyObject *key)
{
    return PyLong_CheckExact(key) || PySlice_Check(key) || key == Py_None || key == Py_Ellipsis;
}

/* Whether an index makes a view: integers, slices, None and an ellipsis. */
static int
basic(PyObject *key)
{
    if (!PyTuple_CheckExact(key))
        return basic_item(key);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
        if (!basic_item(PyTuple_GET_ITEM(key, i)))
            return 0;
    return 1;
}

/* The view of an Array to which a step leads. Steals the references to NumPy's view and to the step. */
static PyObject *
view(PyObject *a, PyObject *step, PyObject *found)
{
    Held *held = (Held *)a;
    PyObject *root = held->base == NULL || held->base == Py_None ? a : held->base;
    PyObject *last = step == NULL ? NULL : PyTuple_Pack(1, step), *steps = last;
    Py_XDECREF(step);
    if (last != NULL && PyTuple_GET_SIZE(held->steps) > 0) {
        steps = PySequence_Concat(held->steps, last);
        Py_DECREF(last);
    }
    Held *made = steps == NULL ? NULL : (Held *)known.array->tp_alloc(known.array, 0);
    if (made == NULL) {
        Py_XDECREF(steps);
        Py_DECREF(found);
        return NULL;
    }
    made->node = found;
    made->base = Py_NewRef(root);
    made->from = Py_NewRef(((Held *)root)->value);
    made->steps = steps;
    return (PyObject *)made;
}

/* The transpose of a small matrix, or of each matrix of a stack; NULL without an error if Python must decide. */
static PyObject *
turned(PyObject *a, int matrix)
{
    PyObject *x = array_of(a);
    int n = x == NULL ? 0 : PyArray_NDIM((PyArrayObject *)x);
    if (n < 2 || (matrix && n != 2))
        return NULL;
    Py_INCREF(x);
    PyObject *found = PyArray_SwapAxes((PyArrayObject *)x, n - 2, n - 1);
    Py_DECREF(x);
    return found == NULL ? NULL : view(a, Py_NewRef(known.turned), found);
}

static PyObject *
get_turned(PyObject *a, void *matrix)
{
    PyObject *found = turned(a, matrix != NULL);
    if (found != NULL || PyErr_Occurred())
        return found;
    return slow(matrix != NULL ? T : MT, a, NULL);
}

static PyObject *
item_step(PyObject *key)
{
    PyObject *items = PyTuple_CheckExact(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
    PyObject *step = items == NULL ? NULL : PyTuple_Pack(2, known.item, items);
    Py_XDECREF(items);
    return step;
}

static PyObject *
subscript(PyObject *a, PyObject *key)
{
    PyObject *x = array_of(a);
    if (x == NULL || !basic(key))
        return slow(GETITEM, a, key);
    Py_INCREF(x);
    PyObject *found = PyObject_GetItem(x, key);
    Py_DECREF(x);
    if (found != NULL && PyArray_CheckExact(found) && PyArray_BASE((PyArrayObject *)found) != NULL)
        return view(a, item_step(key), found);
    return wrapped(found);
}

static int
assign(PyObject *a, PyObject *key, PyObject *value)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_ValueError, "cannot delete array elements");
        return -1;
    }
    PyObject *x = memory_of(a), *y = operand(value);
    if (x == NULL || y == NULL || !basic(key)) {
        PyObject *done = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(known.slow, SETITEM), a, key, value, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    Py_INCREF(x);
    Py_INCREF(y);
    int done = PyObject_SetItem(x, key, y);
    Py_DECREF(x);
    Py_DECREF(y);
    return done;
}

static int
held_traverse(PyObject *self, visitproc visit, void *arg)
{
    Held *held = (Held *)self;
    Py_VISIT(held->value);
    Py_VISIT(held->node);
    Py_VISIT(held->base);
    Py_VISIT(held->steps);
    Py_VISIT(held->from);
    return 0;
}

static int
held_clear(PyObject *self)
{
    Held *held = (Held *)self;
    Py_CLEAR(held->value);
    Py_CLEAR(held->node);
    Py_CLEAR(held->base);
    Py_CLEAR(held->steps);
    Py_CLEAR(held->from);
    return 0;
}

static void
held_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((Held *)self)->weak != NULL)
        PyObject_ClearWeakRefs(self);
    if (kept(((Held *)self)->value))
        ((Held *)self)->value = NULL;
    held_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef held_members[] = {
    {"_value", T_OBJECT, offsetof(Held, value), 0, NULL}, {"_node", T_OBJECT, offsetof(Held, node), 0, NULL},
    {"_base", T_OBJECT, offsetof(Held, base), 0, NULL},   {"_steps", T_OBJECT, offsetof(Held, steps), 0, NULL},
    {"_from", T_OBJECT, offsetof(Held, from), 0, NULL},   {NULL},
};

static PyGetSetDef held_attributes[] = {
    {"mT", get_turned, NULL, "The transposes of a stack of matrices.", NULL},
    {"T", get_turned, NULL, "The transpose of a matrix.", "matrix"},
    {NULL},
};

static PyNumberMethods held_number = {
    .nb_add = nb_add, .nb_subtract = nb_sub, .nb_multiply = nb_mul, .nb_true_divide = nb_truediv,
    .nb_floor_divide = nb_floordiv, .nb_remainder = nb_mod, .nb_power = nb_pow, .nb_and = nb_and, .nb_or = nb_or,
    .nb_xor = nb_xor, .nb_lshift = nb_lshift, .nb_rshift = nb_rshift, .nb_matrix_multiply = nb_matmul,
    .nb_inplace_add = nb_iadd, .nb_inplace_subtract = nb_isub, .nb_inplace_multiply = nb_imul,
    .nb_inplace_true_divide = nb_itruediv, .nb_inplace_floor_divide = nb_ifloordiv, .nb_inplace_remainder = nb_imod,
    .nb_inplace_power = nb_ipow, .nb_inplace_and = nb_iand, .nb_inplace_or = nb_ior, .nb_inplace_xor = nb_ixor,
    .nb_inplace_lshift = nb_ilshift, .nb_inplace_rshift = nb_irshift, .nb_inplace_matrix_multiply = nb_imatmul,
    .nb_negative = nb_neg, .nb_positive = nb_pos, .nb_absolute = nb_abs, .nb_invert = nb_invert,
};

static PyMappingMethods held_mapping = {.mp_subscript = subscript, .mp_ass_subscript = assign};

static PyTypeObject held_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trnpy.xp._quick.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = held_dealloc,
    .tp_traverse = held_traverse,
    .tp_clear = held_clear,
    .tp_members = held_members,
    .tp_getset = held_attributes,
    .tp_as_number = &held_number,
    .tp_as_mapping = &held_mapping,
    .tp_richcompare = compared,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_weaklistoffset = offsetof(Held, weak),
};

/* Whether NumPy's function accepts all names of arguments, and no argument is an Array. */
static int
plain(Direct *self, PyObject *const *values, PyObject *names)
{
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        int there = PySequence_Contains(self->names, PyTuple_GET_ITEM(names, i));
        if (there < 0)
            PyErr_Clear();
        if (there <= 0 || Py_TYPE(values[i]) == known.array)
            return 0;
    }
    return 1;
}

static PyObject *
direct_call(PyObject *function, PyObject *const *args, size_t flags, PyObject *names)
{
    Direct *self = (Direct *)function;
    Py_ssize_t count = PyVectorcall_NARGS(flags), named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    PyObject *values[2 * OPERANDS + 1];
    int arrays = 0;
    if (count != self->operands || count + named > 2 * OPERANDS || !plain(self, args + count, names))
        return PyObject_Vectorcall(self->slow, args, flags, names);
    for (Py_ssize_t i = 0; i < count; i++) {
        values[i] = operand(args[i]);
        if (values[i] == NULL)
            return PyObject_Vectorcall(self->slow, args, flags, names);
        arrays += Py_TYPE(args[i]) == known.array;
    }
    if (!arrays)
        return PyObject_Vectorcall(self->slow, args, flags, names);
    for (Py_ssize_t i = 0; i < named; i++)
        values[count + i] = args[count + i];
    for (Py_ssize_t i = 0; i < count; i++)
        Py_INCREF(values[i]);
    PyObject *out = self->keeps && !named ? memory_for(values[0], count == 2 ? values[1] : NULL) : NULL;
    if (out != NULL)
        values[count] = out;
    PyObject *found = PyObject_Vectorcall(self->fast, values, count, out == NULL ? names : known.out);
    Py_XDECREF(out);
    int shared = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        shared |= found == values[i];
        Py_DECREF(values[i]);
    }
    if (found != NULL && PyArray_CheckExact(found) && (shared || PyArray_BASE((PyArrayObject *)found) != NULL))
        Py_SETREF(found, PyArray_NewCopy((PyArrayObject *)found, NPY_KEEPORDER)); /* an operand may share the memory */
    return wrapped(found);
}

static PyObject *
direct_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *fast, *slow_function, *names;
    Py_ssize_t operands;
    int keeps;
    if (!PyArg_ParseTuple(args, "OOnpO!", &fast, &slow_function, &operands, &keeps, &PyTuple_Type, &names))
        return NULL;
    if (operands < 1 || operands > OPERANDS)
        return PyErr_Format(PyExc_ValueError, "%zd operands", operands);
    Direct *self = (Direct *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = direct_call;
    self->fast = Py_NewRef(fast);
    self->slow = Py_NewRef(slow_function);
    self->names = Py_NewRef(names);
    self->operands = operands;
    self->keeps = keeps && operands <= 2;
    return (PyObject *)self;
}

static int
direct_traverse(PyObject *self, visitproc visit, void *arg)
{
    Direct *direct = (Direct *)self;
    Py_VISIT(direct->fast);
    Py_VISIT(direct->slow);
    Py_VISIT(direct->names);
    Py_VISIT(direct->attributes);
    return 0;
}

static int
direct_clear(PyObject *self)
{
    Direct *direct = (Direct *)self;
    Py_CLEAR(direct->fast);
    Py_CLEAR(direct->slow);
    Py_CLEAR(direct->names);
    Py_CLEAR(direct->attributes);
    return 0;
}

static void
direct_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    direct_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
direct_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(self, "__qualname__"); /* pickle finds it by name, as all functions */
}

static PyMethodDef direct_methods[] = {{"__reduce__", direct_reduce, METH_NOARGS, NULL}, {NULL}};
static PyGetSetDef direct_attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict}, {NULL}};

static PyTypeObject direct_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trnpy.xp._quick.Direct",
    .tp_basicsize = sizeof(Direct),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = direct_new,
    .tp_dealloc = direct_dealloc,
    .tp_traverse = direct_traverse,
    .tp_clear = direct_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Direct, vectorcall),
    .tp_dictoffset = offsetof(Direct, attributes),
    .tp_methods = direct_methods,
    .tp_getset = direct_attributes,
};

/* connect(Array, of, item, matmul, turned, ufuncs, slow, small): the Python objects that the operators need. */
static PyObject *
connect(PyObject *module, PyObject *args)
{
    PyObject *array, *of, *item, *product, *turned_step, *ufuncs, *functions;
    Py_ssize_t small;
    if (!PyArg_ParseTuple(args, "O!OOOO!O!O!n", &PyType_Type, &array, &of, &item, &product, &PyTuple_Type, &turned_step,
                          &PyTuple_Type, &ufuncs, &PyTuple_Type, &functions, &small))
        return NULL;
    if (PyTuple_GET_SIZE(functions) != COUNT || PyTuple_GET_SIZE(ufuncs) != SPARED)
        return PyErr_Format(PyExc_ValueError, "%zd functions, not %d", PyTuple_GET_SIZE(functions), COUNT);
    known.array = (PyTypeObject *)Py_NewRef(array);
    known.of = Py_NewRef(of);
    known.item = Py_NewRef(item);
    known.matmul = Py_NewRef(product);
    known.turned = Py_NewRef(turned_step);
    known.slow = Py_NewRef(functions);
    known.ufuncs = Py_NewRef(ufuncs);
    known.small = small;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"connect", connect, METH_VARARGS, NULL}, {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_quick", NULL, -1, functions};

PyMODINIT_FUNC
PyInit__quick(void)
{
    import_array();
    if (PyType_Ready(&held_type) < 0 || PyType_Ready(&direct_type) < 0)
        return NULL;
    known.empty = PyTuple_New(0);
    known.out = Py_BuildValue("(s)", "out");
    PyObject *module = known.empty == NULL || known.out == NULL ? NULL : PyModule_Create(&definition);
    if (module == NULL || PyModule_AddObjectRef(module, "Held", (PyObject *)&held_type) < 0
        || PyModule_AddObjectRef(module, "Direct", (PyObject *)&direct_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
