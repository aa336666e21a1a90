package terminology

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/definitions"
	"kiln/server/fhir"
)

// r4 opens the embedded definitions, once for all tests.
var r4 = definitions.Embedded

// stored are resources as a store would have them.
type stored struct {
	mu    sync.Mutex
	n     int
	list  map[string][]fhir.Version // type and url
	reads int
	// answered is called when TerminologyStamp has its answer, before it returns.
	answered func()
}

func (s *stored) Canonicals(_ context.Context, typ, url string) ([]fhir.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return s.list[typ+" "+url], nil
}

func (s *stored) ConceptMaps(_ context.Context, system string, to bool) ([]fhir.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []fhir.Version
	for key, list := range s.list {
		side := `"source":"`
		if to {
			side = `"target":"`
		}
		for _, v := range list {
			if strings.HasPrefix(key, "ConceptMap ") && strings.Contains(string(v.Body), side+system+`"`) {
				out = append(out, v)
			}
		}
	}
	return out, nil
}

func (s *stored) Supplements(_ context.Context, system string) ([]fhir.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []fhir.Version
	for _, list := range s.list {
		for _, v := range list {
			if of := topStrings(v.Body, "supplements")[0]; of != "" && (system == "" || of == system || strings.HasPrefix(of, system+"|")) {
				out = append(out, v)
			}
		}
	}
	return out, nil
}

func (s *stored) TerminologyStamp(context.Context) (string, bool, error) {
	s.mu.Lock()
	stamp, answered := string(rune('a'+s.n)), s.answered
	s.mu.Unlock()
	if answered != nil {
		answered()
	}
	return stamp, true, nil
}

func (s *stored) put(t testing.TB, resource string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = make(map[string][]fhir.Version)
	}
	var head struct{ ResourceType, ID, URL string }
	if err := json.Unmarshal([]byte(resource), &head); err != nil {
		t.Fatal(err)
	}
	s.n++
	key := head.ResourceType + " " + head.URL
	v := fhir.Version{ResourceType: head.ResourceType, ID: head.ID, VersionID: s.n, LastUpdated: time.Unix(int64(s.n), 0), Body: []byte(resource)}
	for i, old := range s.list[key] {
		if old.ID == head.ID {
			s.list[key][i] = v
			return
		}
	}
	s.list[key] = append(s.list[key], v)
}

func local(t testing.TB, resources ...string) (*Service, *stored) {
	t.Helper()
	have := &stored{}
	for _, r := range resources {
		have.put(t, r)
	}
	s, err := New(Config{Packages: r4, Resources: have})
	if err != nil {
		t.Fatal(err)
	}
	return s, have
}

// A large stored code system is read once, however many ask about it, and again after
// a change.
func TestLargeCodeSystemIsReadOnce(t *testing.T) {
	t.Parallel()
	const codes = 12_000
	resource := func(display string) string {
		var b strings.Builder
		b.WriteString(`{"resourceType":"CodeSystem","id":"large","url":"http://x/large","status":"active","content":"complete","concept":[`)
		for i := range codes {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"code":"c%d","display":"%s %d, with a text that makes it long enough for more than a megabyte"}`, i, display, i)
		}
		b.WriteString(`]}`)
		return b.String()
	}
	data := new(stored)
	s, err := New(Config{Resources: data})
	if err != nil {
		t.Fatal(err)
	}
	for _, display := range []string{"Concept", "Changed"} {
		data.put(t, resource(display))
		before := data.reads
		var all sync.WaitGroup
		values := make([]any, 8)
		for i := range values {
			all.Go(func() {
				sn, err := s.now(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if values[i], err = sn.resolve(t.Context(), typeCodeSystem, canonical{url: "http://x/large"}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		cs, ok := values[0].(*codeSystem)
		if !ok || len(cs.concepts) != codes || !strings.HasPrefix(cs.concepts[0].display, display) {
			t.Fatalf("%s: found %v", display, ok)
		}
		for i := range values {
			if values[i] != values[0] {
				t.Errorf("%s: asker %d has a code system of its own", display, i)
			}
		}
		reads := data.reads
		for range 3 {
			if got, err := s.Lookup(t.Context(), LookupParams{System: "http://x/large", Code: "c7"}); err != nil || !strings.Contains(string(got), display+" 7") {
				t.Errorf("lookup: %s %v", got, err)
			}
		}
		if data.reads != reads || reads == before {
			t.Errorf("%s: read %d times, then %d times more", display, reads-before, data.reads-reads)
		}
	}
	s.ClearCaches()
	if got := s.CacheState().Bytes; got > 1<<20 {
		t.Errorf("%d bytes are kept after the caches were emptied", got)
	}
}

// TestStampOfBeforeAWrite holds back the answer about the stamp that was given before a value set was written. Neither
// while it is held back nor afterwards does anybody miss the value set who asks after the write.
func TestStampOfBeforeAWrite(t *testing.T) {
	t.Parallel()
	const set = "http://x/written"
	s, have := local(t)
	knows := func() bool {
		in, known := s.Contains(set, "http://x/system", "a")
		return in && known
	}
	if knows() {
		t.Fatal("the value set is known before it is written")
	}
	s.Forget()
	held, release := make(chan struct{}), make(chan struct{})
	have.mu.Lock()
	have.answered = sync.OnceFunc(func() { close(held); <-release })
	have.mu.Unlock()
	early := make(chan struct{})
	go func() {
		defer close(early)
		s.Contains(set, "http://x/system", "a")
	}()
	<-held
	have.mu.Lock()
	have.answered = nil
	have.mu.Unlock()
	have.put(t, `{"resourceType":"CodeSystem","id":"s","url":"http://x/system","status":"active","content":"complete","concept":[{"code":"a"}]}`)
	have.put(t, `{"resourceType":"ValueSet","id":"v","url":"`+set+`","status":"active","compose":{"include":[{"system":"http://x/system"}]}}`)
	s.Forget()
	if !knows() {
		t.Error("the value set is not known while an earlier answer is under way")
	}
	close(release)
	<-early
	if !knows() {
		t.Error("the value set is not known after an earlier answer has come")
	}
}
