package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"
)

// An item without an answer is searched for, by content, among the resources that the
// server has stored since. Ids, versions and times are the server's, and it replaced
// references to other entries. A transaction is stored whole or not at all, so one resource
// of it is enough.

// clockLeeway is how much earlier than the sending the search begins: answers tell
// the server's time in whole seconds.
const clockLeeway = 5 * time.Second

// found are the entries of a request that the server has, by index.
type found map[int]string

// lookUp returns which of the entries are stored since a time of the server. Of a
// transaction it returns all or none. certain is false when nothing about it can be
// looked up: then it must not be sent again.
func (p *poster) lookUp(ctx context.Context, o *outgoing, want []int, since time.Time) (have found, certain bool, err error) {
	p.answering.Lock()
	defer p.answering.Unlock()
	if o.transaction {
		i := o.probe()
		if i < 0 {
			return nil, false, nil
		}
		have, err = p.lookFor(ctx, o, []int{i}, since)
		if err != nil || len(have) == 0 {
			return nil, true, err
		}
		for _, k := range want {
			if _, ok := have[k]; !ok {
				have[k] = ""
			}
		}
		return have, true, nil
	}
	have, err = p.lookFor(ctx, o, want, since)
	return have, true, err
}

// probe is the entry by which a transaction is looked up, -1 where there is none: a
// create or an update, best one with an identifier, of the type that the transaction
// has fewest of.
func (o *outgoing) probe() int {
	types := make(map[string]int)
	for _, e := range o.entries {
		types[e.typ]++
	}
	candidates := make([]int, 0, len(o.entries))
	for i, e := range o.entries {
		if e.ifNoneExist == "" && (e.method == http.MethodPost || e.method == http.MethodPut && e.id != "") {
			candidates = append(candidates, i)
		}
	}
	if len(candidates) == 0 {
		return -1
	}
	weight := func(i int) int {
		e := o.entries[i]
		w := types[e.typ]
		if e.method == http.MethodPost && identifierOf(e.resource) == "" {
			w += 1_000_000
		}
		return w
	}
	sort.SliceStable(candidates, func(a, b int) bool { return weight(candidates[a]) < weight(candidates[b]) })
	return candidates[0]
}

// lookFor looks for entries one by one, those without a chosen id by content.
func (p *poster) lookFor(ctx context.Context, o *outgoing, want []int, since time.Time) (found, error) {
	have := make(found)
	byType := make(map[string][]int)
	for _, i := range want {
		e := o.entries[i]
		switch {
		case e.method == http.MethodPut && e.id != "":
			at, err := p.readBack(ctx, e, since)
			if err != nil {
				return nil, err
			}
			if at != "" {
				have[i] = at
			}
		case e.method == http.MethodPost && e.typ != "":
			byType[e.typ] = append(byType[e.typ], i)
		}
	}
	for typ, list := range byType {
		query := url.Values{"_lastUpdated": {"ge" + since.Add(-clockLeeway).UTC().Format("2006-01-02T15:04:05Z")}, "_sort": {"_lastUpdated"}, "_count": {"200"}}
		if len(list) == 1 {
			if id := identifierOf(o.entries[list[0]].resource); id != "" {
				query.Set("identifier", id)
			}
		}
		sent := make(map[int]map[string]any, len(list)) // parsed once: the server may have stored many since
		for _, i := range list {
			sent[i] = contentOf(o.entries[i].resource)
		}
		next := "/" + typ + "?" + query.Encode()
		for next != "" && len(list) > 0 {
			var page struct {
				Link  []struct{ Relation, URL string } `json:"link"`
				Entry []struct {
					Resource json.RawMessage `json:"resource"`
				} `json:"entry"`
			}
			if err := p.get(ctx, next, &page); err != nil {
				return nil, err
			}
			for _, c := range page.Entry {
				var h head
				if json.Unmarshal(c.Resource, &h) != nil || h.ResourceType != typ || !madeSince(h.ID, since) {
					continue
				}
				stored := contentOf(c.Resource)
				for k, i := range list {
					if sameContent(sent[i], stored) && p.journal.claimLocation(typ+"/"+h.ID) {
						have[i] = typ + "/" + h.ID
						list = append(list[:k:k], list[k+1:]...)
						break
					}
				}
			}
			next = ""
			for _, l := range page.Link {
				if l.Relation == "next" {
					next = l.URL
				}
			}
		}
	}
	return have, nil
}

// madeSince reports whether a server of Kiln made an id after a time, give or take a
// minute: a version 7 UUID begins with its time. A create stores no resource with a chosen
// or an older id.
func madeSince(id string, since time.Time) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.Version() == 7 && !time.Unix(u.Time().UnixTime()).Before(since.Add(-time.Minute))
}

// readBack returns Type/id when the resource is there as it was sent, and was
// written since; "" otherwise.
func (p *poster) readBack(ctx context.Context, e entry, since time.Time) (string, error) {
	at := e.typ + "/" + e.id
	status, body, err := p.send(ctx, http.MethodGet, "/"+e.typ+"/"+url.PathEscape(e.id), nil)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusNotFound || status == http.StatusGone:
		return "", nil
	case status != http.StatusOK:
		return "", fmt.Errorf("look up %s: %d %s", at, status, http.StatusText(status))
	}
	var h struct {
		Meta struct {
			LastUpdated time.Time `json:"lastUpdated"`
		} `json:"meta"`
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return "", fmt.Errorf("look up %s: %w", at, err)
	}
	if h.Meta.LastUpdated.Before(since.Add(-clockLeeway)) || !sameContent(contentOf(e.resource), contentOf(body)) {
		return "", nil
	}
	return at, nil
}

// hasResource reports whether the server has, or had, the resource at Type/id.
func (p *poster) hasResource(ctx context.Context, location string) (bool, error) {
	status, _, err := p.send(ctx, http.MethodGet, "/"+location, nil)
	return status == http.StatusOK || status == http.StatusGone, err
}

// get reads JSON from a path below the server, or from a link that it gave.
func (p *poster) get(ctx context.Context, target string, out any) error {
	if at, ok := strings.CutPrefix(target, p.server); ok {
		target = at
	} else if u, err := url.Parse(target); err == nil && u.IsAbs() {
		// The server names itself otherwise than we do: by another host or behind a proxy.
		base, err := url.Parse(p.server)
		if err != nil {
			return fmt.Errorf("--server: %w", err)
		}
		target = strings.TrimPrefix(u.RequestURI(), strings.TrimSuffix(base.Path, "/"))
	}
	status, body, err := p.send(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("look up sent resources: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("look up sent resources: GET %s answered %d %s", target, status, http.StatusText(status))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("look up sent resources: %w", err)
	}
	return nil
}

// identifierOf is the first identifier of a resource as a search value, "" when it
// has none.
func identifierOf(resource json.RawMessage) string {
	var r struct {
		Identifier json.RawMessage `json:"identifier"`
	}
	type identifier struct{ System, Value string }
	var list []identifier
	if json.Unmarshal(resource, &r) != nil || json.Unmarshal(r.Identifier, &list) != nil {
		return ""
	}
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`, `|`, `\|`, `$`, `\$`)
	for _, i := range list {
		if i.System != "" && i.Value != "" {
			return escape.Replace(i.System) + "|" + escape.Replace(i.Value)
		}
	}
	return ""
}

// sameContent reports whether a stored resource is the one that was sent, but for the
// targets of references, which are resolved when a Bundle is stored. A nil one
// is the same as none.
func sameContent(sent, stored map[string]any) bool {
	return sent != nil && stored != nil && sameValue("", sent, stored)
}

// contentOf is a resource without the properties that the server sets: id,
// meta.versionId and meta.lastUpdated; nil where it is no JSON object.
func contentOf(resource []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(resource))
	d.UseNumber()
	var r map[string]any
	if d.Decode(&r) != nil {
		return nil
	}
	delete(r, "id")
	if meta, ok := r["meta"].(map[string]any); ok {
		delete(meta, "versionId")
		delete(meta, "lastUpdated")
		if len(meta) == 0 {
			delete(r, "meta")
		}
	}
	return r
}

// sameValue compares the values of a property.
func sameValue(name string, sent, stored any) bool {
	switch x := sent.(type) {
	case map[string]any:
		y, ok := stored.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			w, ok := y[k]
			if !ok || !sameValue(k, v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := stored.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !sameValue(name, x[i], y[i]) {
				return false
			}
		}
		return true
	case string:
		y, ok := stored.(string)
		return ok && (x == y || resolvedAtStore(name, x))
	}
	return sent == stored
}

// resolvedAtStore reports whether the text of a property may be another one once it
// is stored: a reference to an entry of the Bundle, a conditional reference, or a
// narrative with such links.
func resolvedAtStore(name, text string) bool {
	if strings.HasPrefix(text, "<div") {
		return strings.Contains(text, "urn:uuid:") || strings.Contains(text, "urn:oid:")
	}
	if strings.HasPrefix(text, "urn:uuid:") || strings.HasPrefix(text, "urn:oid:") {
		return true
	}
	typ, _, conditional := strings.Cut(text, "?")
	return name == "reference" && conditional && typ != "" && typ[0] >= 'A' && typ[0] <= 'Z' && !strings.ContainsAny(typ, " :/")
}
