package emit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"kiln/gen/handler"
)

// recorder writes which interaction was called and with what.
type recorder struct{}

func (recorder) say(w http.ResponseWriter, r *http.Request, name, typ string) {
	fmt.Fprint(w, name, " ", typ)
	for _, v := range []string{"id", "vid", "operation", "type"} {
		if p := r.PathValue(v); p != "" {
			fmt.Fprint(w, " ", v, "=", p)
		}
	}
}

func (c recorder) Read(w http.ResponseWriter, r *http.Request, t string)   { c.say(w, r, "Read", t) }
func (c recorder) VRead(w http.ResponseWriter, r *http.Request, t string)  { c.say(w, r, "VRead", t) }
func (c recorder) Update(w http.ResponseWriter, r *http.Request, t string) { c.say(w, r, "Update", t) }
func (c recorder) Patch(w http.ResponseWriter, r *http.Request, t string)  { c.say(w, r, "Patch", t) }
func (c recorder) Delete(w http.ResponseWriter, r *http.Request, t string) { c.say(w, r, "Delete", t) }
func (c recorder) Create(w http.ResponseWriter, r *http.Request, t string) { c.say(w, r, "Create", t) }
func (c recorder) SearchType(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "SearchType", t)
}
func (c recorder) HistoryType(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "HistoryType", t)
}
func (c recorder) HistoryInstance(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "HistoryInstance", t)
}
func (c recorder) ConditionalUpdate(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "ConditionalUpdate", t)
}
func (c recorder) ConditionalPatch(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "ConditionalPatch", t)
}
func (c recorder) ConditionalDelete(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "ConditionalDelete", t)
}
func (c recorder) SearchCompartment(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "SearchCompartment", t)
}
func (c recorder) Operation(w http.ResponseWriter, r *http.Request, t string) {
	c.say(w, r, "Operation", t)
}

func TestRoutesReachTheirInteraction(t *testing.T) {
	mux := http.NewServeMux()
	handler.Mount(mux, recorder{})
	for request, want := range map[string]string{
		"GET /Patient":                          "SearchType Patient",
		"HEAD /Patient/1":                       "Read Patient id=1",
		"GET /Patient/1":                        "Read Patient id=1",
		"GET /Patient/_history":                 "HistoryType Patient",
		"GET /Patient/1/_history":               "HistoryInstance Patient id=1",
		"GET /Patient/1/_history/4":             "VRead Patient id=1 vid=4",
		"POST /Patient":                         "Create Patient",
		"POST /Patient/_search":                 "SearchType Patient",
		"PUT /Patient/1":                        "Update Patient id=1",
		"PUT /Patient":                          "ConditionalUpdate Patient",
		"PATCH /Patient":                        "ConditionalPatch Patient",
		"DELETE /Patient":                       "ConditionalDelete Patient",
		"PATCH /Patient/1":                      "Patch Patient id=1",
		"DELETE /Patient/1":                     "Delete Patient id=1",
		"GET /ValueSet/$expand":                 "Operation ValueSet operation=$expand",
		"POST /ValueSet/$expand":                "Operation ValueSet operation=$expand",
		"POST /Observation/1/$validate":         "Operation Observation id=1 operation=$validate",
		"GET /Observation/1/$meta":              "Operation Observation id=1 operation=$meta",
		"GET /Patient/1/$everything":            "Operation Patient id=1 operation=$everything",
		"GET /Patient/1/Observation":            "SearchCompartment Patient id=1 type=Observation",
		"GET /Device/1/*":                       "SearchCompartment Device id=1 type=*",
		"POST /Encounter/1/Observation/_search": "SearchCompartment Encounter id=1 type=Observation",
	} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if got := w.Body.String(); got != want {
			t.Errorf("%s: %d %q, want %q", request, w.Code, got, want)
		}
	}
}

// Registering every path must not be felt at start.
func BenchmarkMount(b *testing.B) {
	for b.Loop() {
		handler.Mount(http.NewServeMux(), recorder{})
	}
}
