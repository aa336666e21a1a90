package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// fake accepts the requests of a server and keeps them.
type fake struct {
	mu       sync.Mutex
	requests []string       // method, path, first family or count of entries
	refuse   map[string]int // path -> status, once for each count in it
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	var b struct {
		Type  json.RawMessage
		Entry []struct {
			Resource struct{ ID string }
		}
	}
	if err := json.Unmarshal(body, &b); err != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if status := f.refuse[r.URL.Path]; status != 0 {
		delete(f.refuse, r.URL.Path)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(status)
		fmt.Fprint(w, `{"resourceType":"OperationOutcome"}`)
		return
	}
	f.requests = append(f.requests, strings.TrimSpace(fmt.Sprintf("%s %s %s %d", r.Method, r.URL.Path, strings.Trim(string(b.Type), `"`), len(b.Entry))))
	if r.URL.Path != "/" {
		w.WriteHeader(http.StatusCreated)
		return
	}
	var entries []string
	for _, e := range b.Entry {
		status := "201 Created"
		if e.Resource.ID == "bad" {
			status = "422 Unprocessable Entity"
		}
		entries = append(entries, `{"response":{"status":"`+status+`","outcome":{"resourceType":"OperationOutcome"}}}`)
	}
	fmt.Fprintf(w, `{"resourceType":"Bundle","type":"x","entry":[%s]}`, strings.Join(entries, ","))
}

func (f *fake) sorted() []string {
	out := slices.Clone(f.requests)
	slices.Sort(out)
	return out
}

const transactionOfTwo = `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"id":"1"}},{"resource":{"id":"2"}}]}`

// run loads paths into f from an empty folder and returns the result.
func (f *fake) run(t *testing.T, dir string, paths ...string) (loadResult, error) {
	t.Helper()
	web := httptest.NewServer(f)
	defer web.Close()
	c := root()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(io.Discard)
	c.SetArgs(append([]string{"load", "--json", "--parallel", "2", "--server", "http://kiln.test",
		"--state", filepath.Join(dir, "state"), "--errors", filepath.Join(dir, "errors")}, paths...))
	// The state file knows a server by its URL, which is the same in every run.
	old := http.DefaultTransport
	http.DefaultTransport = via(web.Listener.Addr().String())
	defer func() { http.DefaultTransport = old }()
	err := c.ExecuteContext(context.Background())
	var r loadResult
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
	}
	return r, err
}

// via sends everything to one address.
func via(address string) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	dial := t.DialContext
	t.Proxy = nil
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, address) }
	return t
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadEveryKindOfFile(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	io.WriteString(z, "{\"resourceType\":\"Patient\",\"id\":\"a\"}\n\n{\"resourceType\":\"Patient\"}\n")
	z.Close()
	var archive bytes.Buffer
	zs, err := zstd.NewWriter(&archive)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(zs)
	for _, name := range []string{"x/patient.json", "x/hospital.json", "x/notes.txt"} {
		tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(transactionOfTwo))})
		io.WriteString(tw, transactionOfTwo)
	}
	tw.Close()
	zs.Close()
	write(t, filepath.Join(data, "bundle.json"), []byte(transactionOfTwo))
	write(t, filepath.Join(data, "one.json"), []byte(`{"resourceType":"Patient","id":"p"}`))
	write(t, filepath.Join(data, "new.json"), []byte(`{"resourceType":"Claim","type":["x"]}`))
	write(t, filepath.Join(data, "lines.ndjson.gz"), gz.Bytes())
	write(t, filepath.Join(data, "archive.tar.zst"), archive.Bytes())
	write(t, filepath.Join(data, "readme.md"), []byte("not for the server"))

	f := &fake{}
	r, err := f.run(t, dir, data)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"POST / batch 2", "POST / transaction 2", "POST / transaction 2", "POST / transaction 2", "POST /Claim [\"x\"] 0", "PUT /Patient/p  0"}
	if got := f.sorted(); !slices.Equal(got, want) {
		t.Errorf("requests\n%q\nwant\n%q", got, want)
	}
	if r.Resources != 10 || r.Requests != 6 || r.Failed != 0 {
		t.Errorf("result %+v", r)
	}
	if _, err := os.Stat(filepath.Join(dir, "state")); !os.IsNotExist(err) {
		t.Error("the state file outlives a load that is done")
	}
}

func TestLoadGoesOn(t *testing.T) {
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "a.json"), []byte(transactionOfTwo))
	bad := write(t, filepath.Join(dir, "b.json"), []byte(`{"resourceType":"Patient","id":"b"}`))
	f := &fake{refuse: map[string]int{"/Patient/b": 422}}
	r, err := f.run(t, dir, good, bad)
	if err == nil || r.Failed != 1 || r.Resources != 2 {
		t.Fatalf("error %v, result %+v", err, r)
	}
	errors, err := os.ReadFile(filepath.Join(dir, "errors"))
	if err != nil || !strings.Contains(string(errors), "b.json") || !strings.Contains(string(errors), `"422"`) {
		t.Errorf("error file %s, %v", errors, err)
	}
	// The second run sends only what failed.
	f.requests = nil
	r, err = f.run(t, dir, good, bad)
	if err != nil || r.Skipped != 1 || r.Resources != 1 {
		t.Errorf("second run: error %v, result %+v", err, r)
	}
	if want := []string{"PUT /Patient/b  0"}; !slices.Equal(f.requests, want) {
		t.Errorf("requests %q, want %q", f.requests, want)
	}
}

func TestLoadTellsEveryFailedLine(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "x.ndjson"), []byte("{\"resourceType\":\"Patient\",\"id\":\"ok\"}\nnonsense\n{\"resourceType\":\"Patient\",\"id\":\"bad\"}\n"))
	r, err := (&fake{}).run(t, dir, path)
	if err == nil || r.Failed != 2 || r.Resources != 1 {
		t.Fatalf("error %v, result %+v", err, r)
	}
	errors, err := os.ReadFile(filepath.Join(dir, "errors"))
	if err != nil || !strings.Contains(string(errors), "line 2") || !strings.Contains(string(errors), "line 3") {
		t.Errorf("error file %s, %v", errors, err)
	}
}

func TestLoadTriesAgainWhenTheServerIsBusy(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "a.json"), []byte(`{"resourceType":"Patient","id":"b"}`))
	r, err := (&fake{refuse: map[string]int{"/Patient/b": 503}}).run(t, dir, path)
	if err != nil || r.Resources != 1 {
		t.Errorf("error %v, result %+v", err, r)
	}
}

func TestRank(t *testing.T) {
	names := []string{"Patient.ndjson", "Bob_Smith.json", "practitionerInformation1.json", "Observation.ndjson", "hospitalInformation1.json", "Organization.ndjson"}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	want := []string{"hospitalInformation1.json", "Organization.ndjson", "practitionerInformation1.json", "Patient.ndjson", "Bob_Smith.json", "Observation.ndjson"}
	if !slices.Equal(names, want) {
		t.Errorf("order %q, want %q", names, want)
	}
}
