package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// outgoing is the request of an item.
type outgoing struct {
	name        string
	transaction bool   // stored whole or not at all; otherwise each entry by itself
	whole       []byte // the body when everything is sent; nil builds a batch of the entries
	single      bool   // the one entry is a request of its own
	entries     []entry
	// bundle means that entries are the entries of whole, which are read when they are
	// needed: a transaction is sent as it is.
	bundle bool
}

// entry is one resource with the request that stores it.
type entry struct {
	name        string // for people
	typ, id     string // id is "" where the server chooses it
	method, url string
	ifNoneExist string
	resource    json.RawMessage
	raw         json.RawMessage // the entry of the Bundle that it came from, nil for a resource
}

// head is what says how a resource is to be sent.
type head struct {
	ResourceType string          `json:"resourceType"`
	ID           string          `json:"id"`
	Type         json.RawMessage `json:"type"` // a string in a Bundle, elsewhere anything
}

// parse reads an item. Items that are no resource go to failures, the rest is sent.
func parse(it item) (outgoing, []failure) {
	if it.lines > 0 {
		return parseLines(it)
	}
	var h head
	if err := json.Unmarshal(it.data, &h); err != nil || h.ResourceType == "" {
		return outgoing{}, []failure{{Source: it.name, Error: "not a FHIR resource in JSON"}}
	}
	kind := strings.Trim(string(h.Type), `"`)
	if h.ResourceType != "Bundle" || kind == "document" || kind == "message" {
		return outgoing{name: it.name, single: true, whole: it.data, entries: []entry{storing(it.name, h, it.data)}}, nil
	}
	switch kind {
	case "transaction", "batch":
		return outgoing{name: it.name, transaction: kind == "transaction", whole: it.data, bundle: true}, nil
	case "searchset", "collection":
		return unpackBundle(it)
	}
	return outgoing{}, []failure{{Source: it.name, Error: fmt.Sprintf(
		"a Bundle of type %q cannot be loaded: expected transaction or batch (sent as they are), searchset or collection (their resources are stored), document or message (stored as Bundles)", kind)}}
}

// storing is the request that stores a resource: PUT where it has an id.
func storing(name string, h head, resource []byte) entry {
	e := entry{name: name, typ: h.ResourceType, id: h.ID, method: http.MethodPost, url: h.ResourceType, resource: resource}
	if h.ID != "" {
		e.method, e.url = http.MethodPut, h.ResourceType+"/"+h.ID
	}
	return e
}

// readEntries reads the entries of a transaction or batch.
func (o *outgoing) readEntries() {
	if !o.bundle || o.entries != nil {
		return
	}
	var b struct {
		Entry []json.RawMessage `json:"entry"`
	}
	if json.Unmarshal(o.whole, &b) != nil {
		return // the server says why it cannot be read
	}
	for _, raw := range b.Entry {
		var e struct {
			Resource json.RawMessage `json:"resource"`
			Request  struct{ Method, URL, IfNoneExist string }
		}
		var h head
		// What cannot be read is the server's to refuse.
		if json.Unmarshal(raw, &e) == nil && len(e.Resource) > 0 {
			_ = json.Unmarshal(e.Resource, &h)
		}
		out := entry{name: o.name, typ: h.ResourceType, method: e.Request.Method, url: e.Request.URL, ifNoneExist: e.Request.IfNoneExist, resource: e.Resource, raw: raw}
		if typ, id, ok := strings.Cut(e.Request.URL, "/"); ok && out.method == http.MethodPut && !strings.ContainsAny(e.Request.URL, "?:") {
			out.typ, out.id = typ, id
		}
		o.entries = append(o.entries, out)
	}
}

// unpackBundle makes a batch of the resources that a search has found or that a
// collection holds.
func unpackBundle(it item) (outgoing, []failure) {
	var b struct {
		Entry []struct {
			Resource json.RawMessage         `json:"resource"`
			Search   struct{ Mode string }   `json:"search"`
			Response struct{ Status string } `json:"response"`
		} `json:"entry"`
	}
	if err := json.Unmarshal(it.data, &b); err != nil {
		return outgoing{}, []failure{{Source: it.name, Error: "not a Bundle: " + err.Error()}}
	}
	o := outgoing{name: it.name}
	var fails []failure
	for i, e := range b.Entry {
		if e.Search.Mode == "outcome" {
			continue // messages of the search itself
		}
		name := fmt.Sprintf("%s, entry %d", it.name, i)
		var h head
		if err := json.Unmarshal(e.Resource, &h); err != nil || h.ResourceType == "" {
			fails = append(fails, failure{Source: name, Error: "the entry has no resource"})
			continue
		}
		o.entries = append(o.entries, storing(name, h, e.Resource))
	}
	return o, fails
}

// parseLines reads a group of .ndjson lines.
func parseLines(it item) (outgoing, []failure) {
	o := outgoing{name: it.name}
	var fails []failure
	number := it.lines
	for text := range bytes.SplitSeq(bytes.TrimSuffix(it.data, []byte("\n")), []byte("\n")) {
		name := fmt.Sprintf("%s, line %d", it.name, number)
		number++
		var h head
		if err := json.Unmarshal(text, &h); err != nil || h.ResourceType == "" {
			fails = append(fails, failure{Source: name, Error: "not a FHIR resource in JSON"})
			continue
		}
		o.entries = append(o.entries, storing(name, h, text))
	}
	return o, fails
}

// allEntries are the indexes of the entries.
func (o *outgoing) allEntries() []int {
	out := make([]int, len(o.entries))
	for i := range out {
		out[i] = i
	}
	return out
}

// body is the request body for some of the entries, by index; nil is everything.
func (o *outgoing) body(some []int) []byte {
	if o.whole != nil && (some == nil || len(some) == len(o.entries)) {
		return o.whole
	}
	if some == nil {
		some = o.allEntries()
	}
	var b bytes.Buffer
	b.WriteString(`{"resourceType":"Bundle","type":"batch","entry":[`)
	for k, i := range some {
		if k > 0 {
			b.WriteByte(',')
		}
		e := o.entries[i]
		if e.raw != nil {
			b.Write(e.raw)
			continue
		}
		target, err := json.Marshal(e.url)
		if err != nil {
			panic(err) // a string always marshals
		}
		fmt.Fprintf(&b, `{"request":{"method":"%s","url":%s},"resource":%s}`, e.method, target, e.resource)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}
