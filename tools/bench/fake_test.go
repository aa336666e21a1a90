package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fake is a FHIR server in memory that knows as much as the workloads ask for.
// Every search matches everything of its type, but for identifiers and patients.
type fake struct {
	mu        sync.Mutex
	url       string
	resources map[string]map[string]json.RawMessage // type -> id -> resource
	next      int
	requests  map[string]int // "GET Patient/_search" and the like
}

func newFake(t *testing.T) *fake {
	f := &fake{resources: map[string]map[string]json.RawMessage{}, requests: map[string]int{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	f.url = s.URL + "/fhir"
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	path := strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, "/fhir"), "/"), "/")
	w.Header().Set("Content-Type", "application/fhir+json")
	typ := path[0]
	switch {
	case typ == "" && r.Method == "POST":
		f.requests["transaction"]++
		var b struct {
			Entry []struct {
				Resource json.RawMessage
				Request  struct{ URL string }
			}
		}
		if err := json.Unmarshal(body, &b); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		for _, e := range b.Entry {
			f.create(e.Request.URL, e.Resource)
		}
		fmt.Fprint(w, `{"resourceType":"Bundle","type":"transaction-response"}`)
	case len(path) == 1 && r.Method == "POST":
		f.requests["create"]++
		if c := r.Header.Get("If-None-Exist"); c != "" {
			q, _ := url.ParseQuery(c)
			if found := f.match(typ, q); len(found) > 0 {
				w.WriteHeader(200)
				return
			}
		}
		w.Header().Set("Location", f.url+"/"+typ+"/"+f.create(typ, body)+"/_history/1")
		w.WriteHeader(201)
	case len(path) == 1:
		f.requests["search"]++
		f.page(w, r, f.match(typ, r.URL.Query()))
	case strings.HasPrefix(path[len(path)-1], "_history"):
		f.requests["history"]++
		f.page(w, r, nil)
	case strings.HasPrefix(path[len(path)-1], "$everything"):
		f.requests["everything"]++
		f.page(w, r, []string{path[1]})
	case f.resources[typ][path[1]] == nil:
		http.NotFound(w, r)
	case r.Method == "GET":
		f.requests["read"]++
		_, _ = w.Write(f.resources[typ][path[1]])
	case r.Method == "PUT":
		f.requests["update"]++
		f.resources[typ][path[1]] = body
	case r.Method == "DELETE":
		f.requests["delete"]++
		delete(f.resources[typ], path[1])
		w.WriteHeader(204)
	}
}

func (f *fake) create(typ string, body []byte) string {
	f.next++
	id := fmt.Sprintf("%05d", f.next)
	var m map[string]any
	_ = json.Unmarshal(body, &m)
	m["id"] = id
	b, _ := json.Marshal(m)
	if f.resources[typ] == nil {
		f.resources[typ] = map[string]json.RawMessage{}
	}
	f.resources[typ][id] = b
	return id
}

func (f *fake) match(typ string, q url.Values) []string {
	ids := slices.Sorted(maps.Keys(f.resources[typ]))
	_, value, _ := strings.Cut(q.Get("identifier"), "|")
	return slices.DeleteFunc(ids, func(id string) bool {
		return value != "" && !strings.Contains(string(f.resources[typ][id]), `"`+value+`"`)
	})
}

func (f *fake) page(w http.ResponseWriter, r *http.Request, ids []string) {
	count, _ := strconv.Atoi(r.URL.Query().Get("_count"))
	if count == 0 || count > 7 {
		count = 7
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("_offset"))
	typ := strings.Split(strings.TrimPrefix(r.URL.Path, "/fhir/"), "/")[0]
	type link struct {
		Relation string `json:"relation"`
		URL      string `json:"url"`
	}
	type entry struct {
		FullURL  string          `json:"fullUrl"`
		Resource json.RawMessage `json:"resource"`
	}
	out := struct {
		ResourceType string  `json:"resourceType"`
		Total        int     `json:"total"`
		Link         []link  `json:"link"`
		Entry        []entry `json:"entry"`
	}{ResourceType: "Bundle", Total: len(ids)}
	end := min(offset+count, len(ids))
	for _, id := range ids[min(offset, end):end] {
		out.Entry = append(out.Entry, entry{f.url + "/" + typ + "/" + id, f.resources[typ][id]})
	}
	if end < len(ids) {
		q := r.URL.Query()
		q.Set("_offset", strconv.Itoa(end))
		out.Link = append(out.Link, link{"next", f.url + "/" + typ + "?" + q.Encode()})
	}
	_ = json.NewEncoder(w).Encode(out)
}
