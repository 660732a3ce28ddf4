/* The compiled part of a hook, which lets small calls pass without Python code.

   A Gate stands before a hook's function (trnpy/_patch/hook._call), which decides every call. Where that function has
   found that calls from one place of the program are small and only counted, it lets the next ones from there pass:
   they go straight to NumPy's function, and each takes one from the iterator that counts them. A call whose operands
   are larger, or of another type, or for which a setting is no longer the object that it was, goes to the function. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

enum { SETTINGS = 4 };  /* attributes on which the decision about a small call rests */
enum { PLACES = 64 };   /* a power of two; of two places with one entry, the one that was let pass last has it */
enum { OPERANDS = 5 };  /* calls with as many positional arguments are not taken for small ones */

typedef struct {
    PyObject *code, *count, *context;
    PyObject *settings[SETTINGS];
    int instruction;
    long left;
} Place;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *decides, *direct, *array, *context, *size;
    PyObject *owners[SETTINGS], *names[SETTINGS];
    long most;
    Place *places;
} Gate;

static Place *
place_of(Gate *self, PyObject *code, int instruction)
{
    size_t hash = ((size_t)code >> 5) ^ ((size_t)instruction >> 1) * 31;
    return self->places + (hash & (PLACES - 1));
}

static void
forget(Place *place)
{
    Py_CLEAR(place->code);
    Py_CLEAR(place->count);
    Py_CLEAR(place->context);
    for (int i = 0; i < SETTINGS; i++) {
        Py_CLEAR(place->settings[i]);
    }
    place->left = 0;
}

/* Whether the arguments are arrays with at most `most` elements in all, and options; -1 with an exception. */
static int
is_small(Gate *self, PyObject *const *args, Py_ssize_t n)
{
    long elements = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if ((PyObject *)Py_TYPE(args[i]) == self->array) {
            PyObject *size = PyObject_GetAttr(args[i], self->size);
            if (size == NULL) {
                return -1;
            }
            elements += PyLong_AsLong(size);
            Py_DECREF(size);
        }
        else if (args[i] != Py_None && !PyLong_Check(args[i]) && !PyFloat_Check(args[i]) && !PyUnicode_Check(args[i])) {
            return 0;
        }
    }
    return elements <= self->most;
}

/* Whether the settings are those under which calls from `place` may pass; -1 with an exception. */
static int
is_unchanged(Gate *self, Place *place)
{
    PyObject *now;
    if (PyContextVar_Get(self->context, Py_None, &now) < 0) {
        return -1;
    }
    Py_DECREF(now);
    if (now != place->context) {
        return 0;
    }
    for (int i = 0; i < SETTINGS; i++) {
        now = PyObject_GetAttr(self->owners[i], self->names[i]);
        if (now == NULL) {
            return -1;
        }
        Py_DECREF(now);
        if (now != place->settings[i]) {
            return 0;
        }
    }
    return 1;
}

/* Whether a call passes; -1 with an exception. */
static int
passes(Gate *self, PyObject *const *args, Py_ssize_t positional, Py_ssize_t n)
{
    PyFrameObject *frame = self->places == NULL || positional >= OPERANDS ? NULL : PyEval_GetFrame();
    if (frame == NULL) {
        return 0;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    int instruction = PyFrame_GetLasti(frame);
    Place *place = place_of(self, code, instruction);
    Py_DECREF(code); /* which the frame holds */
    if (place->left <= 0 || place->code != code || place->instruction != instruction) {
        return 0;
    }
    int may = is_small(self, args, n);
    if (may == 1) {
        may = is_unchanged(self, place);
    }
    if (may == 1) {
        PyObject *counted = PyIter_Next(place->count);
        if (counted == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        Py_DECREF(counted);
        place->left--;
    }
    return may;
}

static PyObject *
gate_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    Py_ssize_t n = positional + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    int may = passes((Gate *)self, args, positional, n);
    if (may < 0) {
        return NULL;
    }
    return PyObject_Vectorcall(may ? ((Gate *)self)->direct : ((Gate *)self)->decides, args, nargsf, kwnames);
}

PyDoc_STRVAR(
    let_pass_doc,
    "let_pass(frame, context, settings, count, left)\n--\n\n"
    "Let the next small calls from the instruction at which ``frame`` is pass, at most ``left`` of them.\n\n"
    "They pass while the context variable has the value ``context`` and the attributes are the objects ``settings``.\n"
    "Each takes one from ``count``.");

static PyObject *
gate_let_pass(Gate *self, PyObject *args)
{
    PyObject *frame, *context, *settings, *count;
    long left;
    if (!PyArg_ParseTuple(args, "O!OO!Ol", &PyFrame_Type, &frame, &context, &PyTuple_Type, &settings, &count, &left)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(settings) != SETTINGS || !PyIter_Check(count)) {
        return PyErr_Format(PyExc_TypeError, "let_pass() takes %d settings and an iterator", SETTINGS);
    }
    if (self->places == NULL && (self->places = PyMem_Calloc(PLACES, sizeof(Place))) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    int instruction = PyFrame_GetLasti((PyFrameObject *)frame);
    Place *place = place_of(self, code, instruction), before = *place;
    *place = (Place){code, Py_NewRef(count), Py_NewRef(context), {NULL}, instruction, left};
    for (int i = 0; i < SETTINGS; i++) {
        place->settings[i] = Py_NewRef(PyTuple_GET_ITEM(settings, i));
    }
    forget(&before); /* last: it may run any code */
    Py_RETURN_NONE;
}

static PyObject *
gate_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *decides, *direct, *array, *context, *settings;
    long most;
    if (!PyArg_ParseTuple(args, "OOOOO!l", &decides, &direct, &array, &context, &PyTuple_Type, &settings, &most)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(settings) != SETTINGS) {
        return PyErr_Format(PyExc_TypeError, "Gate() takes %d settings", SETTINGS);
    }
    Gate *self = (Gate *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = gate_vectorcall;
    self->decides = Py_NewRef(decides);
    self->direct = Py_NewRef(direct);
    self->array = Py_NewRef(array);
    self->context = Py_NewRef(context);
    self->most = most;
    self->size = PyUnicode_InternFromString("size");
    int complete = self->size != NULL;
    for (int i = 0; complete && i < SETTINGS; i++) {
        complete = PyArg_ParseTuple(PyTuple_GET_ITEM(settings, i), "OU", &self->owners[i], &self->names[i]);
        Py_XINCREF(self->owners[i]);
        Py_XINCREF(self->names[i]);
    }
    if (!complete) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
gate_traverse(Gate *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->decides);
    Py_VISIT(self->direct);
    Py_VISIT(self->array);
    Py_VISIT(self->context);
    for (int i = 0; i < SETTINGS; i++) {
        Py_VISIT(self->owners[i]);
    }
    for (Place *place = self->places; place != NULL && place < self->places + PLACES; place++) {
        Py_VISIT(place->code);
        Py_VISIT(place->count);
        Py_VISIT(place->context);
        for (int i = 0; i < SETTINGS; i++) {
            Py_VISIT(place->settings[i]);
        }
    }
    return 0;
}

/* The functions stay, as a finalizer may still call: a cycle through them is broken where they hold the gate. */
static int
gate_clear(Gate *self)
{
    for (Place *place = self->places; place != NULL && place < self->places + PLACES; place++) {
        forget(place);
    }
    return 0;
}

static void
gate_dealloc(Gate *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gate_clear(self);
    PyMem_Free(self->places);
    Py_CLEAR(self->decides);
    Py_CLEAR(self->direct);
    Py_CLEAR(self->array);
    Py_CLEAR(self->context);
    Py_CLEAR(self->size);
    for (int i = 0; i < SETTINGS; i++) {
        Py_CLEAR(self->owners[i]);
        Py_CLEAR(self->names[i]);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"let_pass", (PyCFunction)gate_let_pass, METH_VARARGS, let_pass_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gate, vectorcall), READONLY, NULL},
    {"most", T_LONG, offsetof(Gate, most), 0, "elements of the largest calls that may pass"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Gate(decides, direct, array, context, settings, most)\n--\n\nA function before a hook's own."},
    {Py_tp_new, gate_new},
    {Py_tp_dealloc, gate_dealloc},
    {Py_tp_traverse, gate_traverse},
    {Py_tp_clear, gate_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    "trnpy._patch._gate.Gate", sizeof(Gate), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots,
};

static int
execute(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int added = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return added;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_gate", "The compiled part of hooks.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__gate(void)
{
    return PyModuleDef_Init(&definition);
}
