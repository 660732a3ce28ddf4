/* The gate of an accelerated function: it runs calls that have nothing to gain without Python code.

   A Python function (trnpy/_call/gate.py) decides calls. It tells the gate which calls go to NumPy or SciPy without a
   decision: all below a size limit, and those with a cache key (dtypes, shapes and options) that has been decided.
   Both are valid while the objects in the gate's `State` are the same. If calls are recorded, the calls from one place
   in the program pass as often as the Python function has allowed; each adds one to an array that counts them.
   docs/baselines.md#what-the-runner-adds lists the time of each step. */

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "_sparse.h"
#include "_kinds.h"

enum { OPERANDS = 5 };    /* calls with this many positional arguments or more do not count as small */

/* The state on which a decision depends. The activation belongs to a patch; direct functions have none. */
enum { ACTIVATION, POLICY, OWN_POLICY, LEDGER, CALIBRATION, STATE };
/* Class attributes with the values of the process: members of the state, and whether contexts may have their own. */
enum { OF_POLICY, OF_LEDGER, OF_CALIBRATION, OF_APART, OF_ACTIVATION, OWNERS };
/* Context variables: activation, policy, engine and trace. If one of the last two is set, none passes. */
enum { IN_ACTIVATION, IN_POLICY, IN_ENGINE, IN_TRACE, VARIABLES };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *decides, *direct, *nothing; /* `nothing`: the activation of threads and tasks without a patch */
    PyObject *variables, *attributes, *state; /* tuples; the items of `attributes` are pairs of a class and a name */
    PyObject *values[OWNERS];   /* of the attributes, borrowed, while the classes have these version tags */
    unsigned int tags[OWNERS];
    unsigned long turn; /* how often the state has changed */
    double elements, product;
    int blas; /* whether `product` does not limit the dtypes that BLAS multiplies */
    int product_of_sparse; /* whether the function is SciPy's method for products of sparse matrices */
    int alone; /* whether the function's own calls of accelerated functions are neither routed nor recorded */
    Kind *kinds;
    Place *places, *end;
} Gated;

/* Whether all arguments are options or operands within the limits. */
static int
is_small(Gated *self, PyObject *const *args, Py_ssize_t positional, Py_ssize_t n)
{
    if (self->product_of_sparse) {
        double work = n == 2 ? multiply_adds(args[0], args[1]) : -1;
        return 0 <= work && work < self->elements;
    }
    Sizes sizes = {0, 1, self->blas};
    int fits = positional < OPERANDS;
    for (Py_ssize_t i = 0; fits && i < n; i++) {
        fits = add_sizes(&sizes, args[i], self->elements, DEPTH);
    }
    return fits && sizes.elements <= self->elements && (sizes.blas || sizes.product <= self->product);
}

/* The function that a call may run at once, borrowed, and its tag; NULL if the call needs a decision. */
static PyObject *
function_for(Gated *self, PyObject *const *args, Py_ssize_t positional, Py_ssize_t n, PyObject *kwnames, PyObject **tag)
{
    *tag = Py_None;
    if (is_small(self, args, positional, n)) {
        return self->direct;
    }
    Kind *kind = kind_of(self->kinds, hash_of(args, positional, kwnames));
    if (kind == NULL) {
        return NULL;
    }
    *tag = kind->tag;
    return kind->function;
}

/* The value of a context variable, borrowed from its context; NULL with an exception. */
static PyObject *
value_of(Gated *self, int i)
{
    PyObject *now;
    if (PyContextVar_Get(PyTuple_GET_ITEM(self->variables, i), Py_None, &now) < 0) {
        return NULL;
    }
    Py_DECREF(now);
    return now;
}

/* The value of a class attribute, borrowed. A class that changes gets another version tag. */
static PyObject *
attribute(Gated *self, int i)
{
    PyObject *pair = PyTuple_GET_ITEM(self->attributes, i);
    PyTypeObject *owner = (PyTypeObject *)PyTuple_GET_ITEM(pair, 0);
    if (owner->tp_version_tag == 0 || owner->tp_version_tag != self->tags[i]) {
        self->values[i] = _PyType_Lookup(owner, PyTuple_GET_ITEM(pair, 1));
        self->tags[i] = owner->tp_version_tag; /* the look-up has assigned one, unless there are no more */
    }
    return self->values[i];
}

/* Member `i` of the state, borrowed; NULL if there is no state. */
static PyObject *
known(Gated *self, int i)
{
    return self->state == NULL ? NULL : PyTuple_GET_ITEM(self->state, i);
}

enum { CHANGED, SAME, INACTIVE };

/* Whether the current state equals the gate's; -1 with an exception. */
static int
compared(Gated *self)
{
    if (self->nothing != Py_None) {
        PyObject *active = value_of(self, IN_ACTIVATION);
        if (active == NULL) {
            return -1;
        }
        active = active == Py_None ? attribute(self, OF_ACTIVATION) : active;
        if (active == self->nothing) {
            return INACTIVE;
        }
        if (active != known(self, ACTIVATION)) {
            return CHANGED;
        }
    }
    if (attribute(self, OF_POLICY) != known(self, POLICY) || attribute(self, OF_LEDGER) != known(self, LEDGER) ||
        attribute(self, OF_CALIBRATION) != known(self, CALIBRATION)) {
        return CHANGED;
    }
    if (attribute(self, OF_APART) == Py_False) {
        return known(self, OWN_POLICY) == Py_None ? SAME : CHANGED;
    }
    PyObject *policy = value_of(self, IN_POLICY);
    PyObject *engine = policy == NULL ? NULL : value_of(self, IN_ENGINE);
    PyObject *trace = engine == NULL ? NULL : value_of(self, IN_TRACE);
    if (trace == NULL) {
        return -1;
    }
    return policy == known(self, OWN_POLICY) && engine == Py_None && trace == Py_None ? SAME : CHANGED;
}

/* The function that a call runs at once, and the function that receives its time if it is sampled, as new references.
   NULL if the call needs a decision, or with an exception. */
static PyObject *
passes(Gated *self, PyObject *const *args, Py_ssize_t positional, PyObject *kwnames, PyObject **sample)
{
    *sample = NULL;
    int found = compared(self);
    if (found == INACTIVE) {
        return Py_NewRef(self->direct);
    }
    Py_ssize_t n = positional + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *tag, *function = found == SAME ? function_for(self, args, positional, n, kwnames, &tag) : NULL;
    if (function == NULL || known(self, LEDGER) == Py_None) {
        return Py_XNewRef(function);
    }
    int instruction;
    PyObject *code = self->places == NULL ? NULL : caller(&instruction, self->product_of_sparse ? operators : NULL);
    Place *place = code == NULL ? NULL : entry_of(self->places, code, instruction);
    if (place == NULL || place->turn != self->turn || place->tag != tag) {
        return NULL;
    }
    if (place->left <= 0) {
        if (place->sample == Py_None) {
            return NULL;
        }
        place->left = place->each + 1;
        *sample = Py_NewRef(place->sample);
    }
    place->left--;
    if (place->count != Py_None) {
        ++*(npy_int64 *)PyArray_DATA((PyArrayObject *)place->count);
    }
    return Py_NewRef(function);
}

/* The result of `function`, during which accelerated functions are the originals. */
static PyObject *
alone(Gated *self, PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *token = PyContextVar_Set(PyTuple_GET_ITEM(self->variables, IN_ACTIVATION), self->nothing);
    if (token == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, kwnames);
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    int failed = PyContextVar_Reset(PyTuple_GET_ITEM(self->variables, IN_ACTIVATION), token);
    Py_DECREF(token);
    if (failed < 0) {
        Py_CLEAR(result);
    }
    else {
        PyErr_Restore(kind, value, traceback);
    }
    return result;
}

static PyObject *perf_counter; /* of the module time */

/* Call `sample` with the start and the duration of a call; -1 with an exception. */
static int
timed(PyObject *sample, PyObject *started)
{
    PyObject *ended = PyObject_CallNoArgs(perf_counter);
    PyObject *seconds = ended == NULL ? NULL : PyNumber_Subtract(ended, started);
    PyObject *said = seconds == NULL ? NULL : PyObject_CallFunctionObjArgs(sample, started, seconds, NULL);
    Py_XDECREF(ended);
    Py_XDECREF(seconds);
    Py_XDECREF(said);
    return said == NULL ? -1 : 0;
}

static PyObject *
gated_vectorcall(PyObject *gate, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Gated *self = (Gated *)gate;
    PyObject *sample, *function = passes(self, args, PyVectorcall_NARGS(nargsf), kwnames, &sample);
    if (function == NULL) {
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->decides, args, nargsf, kwnames);
    }
    PyObject *started = sample == NULL ? NULL : PyObject_CallNoArgs(perf_counter), *result = NULL;
    if (sample == NULL || started != NULL) {
        result = self->alone ? alone(self, function, args, nargsf, kwnames)
                             : PyObject_Vectorcall(function, args, nargsf, kwnames);
    }
    if (result != NULL && sample != NULL && timed(sample, started) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(started);
    Py_XDECREF(sample);
    Py_DECREF(function);
    return result;
}

PyDoc_STRVAR(limit_doc,
             "_limit(elements, product, blas)\n--\n\n"
             "Calls are small if the sum of their arrays' sizes is at most ``elements`` and the product at most\n"
             "``product``; an empty array counts as one in the product. With ``blas``, the product does not limit\n"
             "calls whose arrays all have dtypes that BLAS multiplies.");

static PyObject *
gated_limit(Gated *self, PyObject *args)
{
    return PyArg_ParseTuple(args, "ddp", &self->elements, &self->product, &self->blas) ? Py_NewRef(Py_None) : NULL;
}

/* Set the gate's state; if it differs from the former one, the gate forgets all calls. */
static int
settle(Gated *self, PyObject *state)
{
    if (!PyTuple_Check(state) || PyTuple_GET_SIZE(state) != STATE) {
        PyErr_Format(PyExc_TypeError, "expected a state of %d objects", STATE);
        return -1;
    }
    int same = self->state != NULL;
    for (int i = 0; same && i < STATE; i++) {
        same = known(self, i) == PyTuple_GET_ITEM(state, i);
    }
    if (!same) {
        self->turn++;
        forget(self->kinds);
        PyObject *before = self->state;
        self->state = Py_NewRef(state);
        Py_XDECREF(before);
    }
    return 0;
}

PyDoc_STRVAR(settle_doc, "_settle(state)\n--\n\nLet small calls pass while the state is ``state``, if none is recorded.");

static PyObject *
gated_settle(Gated *self, PyObject *state)
{
    return settle(self, state) < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(remember_doc, "_remember(state, function, tag, args, kwargs)\n--\n\n"
                           "Let calls with this cache key run ``function`` at once while the state is ``state``.\n"
                           "They are counted with other calls that have the same ``tag``.");

static PyObject *
gated_remember(Gated *self, PyObject *arguments)
{
    PyObject *state, *function, *tag, *args, *kwargs;
    if (!PyArg_ParseTuple(arguments, "OOOO!O!", &state, &function, &tag, &PyTuple_Type, &args, &PyDict_Type, &kwargs) ||
        settle(self, state) < 0) {
        return NULL;
    }
    return remember(&self->kinds, hash_of_call(args, kwargs), function, tag) < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(known_doc, "_known(state, args, kwargs)\n--\n\n"
                        "The function and the tag of calls with this cache key under ``state``; None if unknown.");

static PyObject *
gated_known(Gated *self, PyObject *arguments)
{
    PyObject *state, *args, *kwargs;
    if (!PyArg_ParseTuple(arguments, "OO!O!", &state, &PyTuple_Type, &args, &PyDict_Type, &kwargs) ||
        settle(self, state) < 0) {
        return NULL;
    }
    Kind *kind = kind_of(self->kinds, hash_of_call(args, kwargs));
    return kind == NULL ? Py_NewRef(Py_None) : PyTuple_Pack(2, kind->function, kind->tag);
}

PyDoc_STRVAR(let_pass_doc,
             "_let_pass(state, frame, tag, count, left, sample)\n--\n\n"
             "Let the next calls with ``tag`` from the instruction at which ``frame`` is pass, at most ``left``.\n\n"
             "They pass while the state is ``state``; each adds one to ``count``, an array of one int64, or None. The next\n"
             "call is timed: ``sample``\n"
             "receives its start and seconds, and ``left`` more pass. If ``sample`` is None, that call is decided.");

static PyObject *
gated_let_pass(Gated *self, PyObject *args)
{
    PyObject *state, *frame, *tag, *count, *sample;
    long left;
    if (!PyArg_ParseTuple(args, "OO!OOlO", &state, &PyFrame_Type, &frame, &tag, &count, &left, &sample) || settle(self, state) < 0) {
        return NULL;
    }
    if (count != Py_None && !(PyArray_CheckExact(count) && PyArray_TYPE((PyArrayObject *)count) == NPY_INT64 &&
                              PyArray_SIZE((PyArrayObject *)count) == 1 && PyArray_ISBEHAVED((PyArrayObject *)count))) {
        return PyErr_Format(PyExc_TypeError, "_let_pass(): expected an array of one int64 or None");
    }
    if (self->places == NULL) {
        self->places = PyMem_Calloc(PLACES, sizeof(Place));
        if (self->places == NULL) {
            return PyErr_NoMemory();
        }
        self->end = self->places + PLACES;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    int instruction = PyFrame_GetLasti((PyFrameObject *)frame);
    Place *place = entry_of(self->places, code, instruction);
    place = place != NULL ? place : entry_for(self->places, self->turn, code, instruction);
    replace(place, (Place){code, Py_NewRef(count), Py_NewRef(tag), Py_NewRef(sample), instruction, left, left, self->turn});
    Py_RETURN_NONE;
}

static PyObject *
gated_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *decides, *direct, *nothing, *variables, *attributes;
    int alone, product_of_sparse;
    if (!PyArg_ParseTuple(args, "OOOO!O!pp", &decides, &direct, &nothing, &PyTuple_Type, &variables, &PyTuple_Type,
                          &attributes, &alone, &product_of_sparse)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(variables) != VARIABLES || PyTuple_GET_SIZE(attributes) != OWNERS) {
        return PyErr_Format(PyExc_TypeError, "Gated(): expected %d variables and %d attributes", VARIABLES, OWNERS);
    }
    for (int i = 0; i < OWNERS; i++) {
        PyObject *owner, *name;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(attributes, i), "O!U", &PyType_Type, &owner, &name)) {
            return NULL;
        }
    }
    Gated *self = (Gated *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (type->tp_call == PyVectorcall_Call) {
        type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL; /* classes inherit this flag only from Python 3.12 on */
    }
    self->vectorcall = gated_vectorcall;
    self->decides = Py_NewRef(decides);
    self->direct = Py_NewRef(direct);
    self->nothing = Py_NewRef(nothing);
    self->elements = self->product = -1; /* no call is small until _limit() is called */
    self->alone = alone;
    self->product_of_sparse = product_of_sparse;
    if (product_of_sparse) {
        type->tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR; /* an instance in a class is called with the object */
    }
    self->variables = Py_NewRef(variables);
    self->attributes = Py_NewRef(attributes);
    return (PyObject *)self;
}

static int
gated_traverse(Gated *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->decides);
    Py_VISIT(self->direct);
    Py_VISIT(self->nothing);
    Py_VISIT(self->variables);
    Py_VISIT(self->attributes);
    Py_VISIT(self->state);
    for (Place *place = self->places; place < self->end; place++) {
        Py_VISIT(place->code);
        Py_VISIT(place->count);
        Py_VISIT(place->tag);
        Py_VISIT(place->sample);
    }
    for (int i = 0; self->kinds != NULL && i < 1 << KINDS_LOG2; i++) {
        Py_VISIT(self->kinds[i].function);
        Py_VISIT(self->kinds[i].tag);
    }
    return 0;
}

/* The functions stay, because a finalizer may still call the gate. A cycle through them is broken on their side. */
static int
gated_clear(Gated *self)
{
    for (Place *place = self->places; place < self->end; place++) {
        replace(place, (Place){NULL});
    }
    for (int i = 0; self->kinds != NULL && i < 1 << KINDS_LOG2; i++) {
        self->kinds[i].hash = 0;
        Py_CLEAR(self->kinds[i].function);
        Py_CLEAR(self->kinds[i].tag);
    }
    Py_CLEAR(self->state);
    return 0;
}

static void
gated_dealloc(Gated *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gated_clear(self);
    PyMem_Free(self->places);
    PyMem_Free(self->kinds);
    Py_CLEAR(self->decides);
    Py_CLEAR(self->direct);
    Py_CLEAR(self->nothing);
    Py_CLEAR(self->variables);
    Py_CLEAR(self->attributes);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"_limit", (PyCFunction)gated_limit, METH_VARARGS, limit_doc},
    {"_settle", (PyCFunction)gated_settle, METH_O, settle_doc},
    {"_known", (PyCFunction)gated_known, METH_VARARGS, known_doc},
    {"_remember", (PyCFunction)gated_remember, METH_VARARGS, remember_doc},
    {"_let_pass", (PyCFunction)gated_let_pass, METH_VARARGS, let_pass_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gated, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Gated(decides, direct, nothing, variables, attributes, alone, product_of_sparse)\n--\n\n"
                "A function that runs some of its calls without a decision."},
    {Py_tp_new, gated_new},
    {Py_tp_dealloc, gated_dealloc},
    {Py_tp_traverse, gated_traverse},
    {Py_tp_clear, gated_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    "trnpy._call._gate.Gated", sizeof(Gated), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots,
};

static int
execute(PyObject *module)
{
    PyObject *time = PyImport_ImportModule("time");
    if (PyArray_ImportNumPyAPI() < 0 || time == NULL || (perf_counter = PyObject_GetAttrString(time, "perf_counter")) == NULL) {
        return -1;
    }
    Py_DECREF(time);
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL || intern_names() < 0) {
        return -1;
    }
    int added = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_gate", "The compiled part of calls.", 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__gate(void)
{
    return PyModuleDef_Init(&definition);
}
