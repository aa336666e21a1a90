package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/store"
)

// identity is a subscription that an App has or had. Its number is part of the subscriber's id,
// which pending deliveries name. docs/contract.md, Apps, section 5.
type identity struct {
	number  int
	name    string // "" for none
	content string // digest of the subscription's conditions and handler
	current bool   // the App has it now
}

// contentOf is a digest of a subscription: its events and the handler that gets them. Retries,
// headers and rights are not in it.
func contentOf(s *r4.AppSubscriptions) string {
	events := []string{}
	for i := range s.Events {
		events = append(events, s.Events[i].Text)
	}
	slices.Sort(events)
	parts := []any{s.ResourceType.Text, events, s.Filter.Text}
	if h := s.Handler; h != nil {
		parts = append(parts, h.Type_.Text, h.URL.Text, h.Code.Text)
	}
	text, _ := json.Marshal(parts) // texts
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// identifySubscriptions returns the number of each subscription of an App, and the identities of the App from
// then on. known are those from before, by number. A subscription is the one of its name, else the
// one of its content; a new one has a new number.
func identifySubscriptions(known []identity, list []r4.AppSubscriptions) (numbers []int, all []identity) {
	all = slices.Clone(known)
	next := 0
	for i := range all {
		all[i].current = false
		next = max(next, all[i].number+1)
	}
	numbers = make([]int, len(list))
	found := make([]bool, len(list))
	match := func(same func(x identity, s *r4.AppSubscriptions) bool) {
		for i := range list {
			for j := range all {
				if !found[i] && !all[j].current && same(all[j], &list[i]) {
					found[i], numbers[i] = true, all[j].number
					all[j].current, all[j].name, all[j].content = true, list[i].Name.Text, contentOf(&list[i])
				}
			}
		}
	}
	match(func(x identity, s *r4.AppSubscriptions) bool { return s.Name.Text != "" && x.name == s.Name.Text })
	match(func(x identity, s *r4.AppSubscriptions) bool {
		return (x.name == "" || s.Name.Text == "") && x.content == contentOf(s)
	})
	for i := range list {
		if !found[i] {
			numbers[i] = next
			all = append(all, identity{next, list[i].Name.Text, contentOf(&list[i]), true})
			next++
		}
	}
	return numbers, all
}

// readIdentities reads the identities of an App, or of all where id is "".
func readIdentities(ctx context.Context, q *db.Queries, id string) (map[string][]identity, error) {
	rows, err := q.AppSubscriptions(ctx, id)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]identity)
	for _, r := range rows {
		out[r.App] = append(out[r.App], identity{int(r.Number), r.Name, r.Content, r.Current})
	}
	return out, nil
}

// register stores the identities of an App's subscriptions as they are now.
func register(ctx context.Context, tx *store.Tx, id string, a *r4.App, onlyFirst bool) error {
	q := db.New(tx.Conn())
	known, err := readIdentities(ctx, q, id)
	if err != nil || onlyFirst && len(known[id]) > 0 {
		return err
	}
	_, all := identifySubscriptions(known[id], a.Subscriptions)
	p := db.PutAppSubscriptionsParams{App: id}
	for _, x := range all {
		p.Numbers, p.Names = append(p.Numbers, int32(x.number)), append(p.Names, x.name)
		p.Contents, p.Currents = append(p.Contents, x.content), append(p.Currents, x.current)
	}
	if len(p.Numbers) == 0 {
		return nil
	}
	return q.PutAppSubscriptions(ctx, p)
}

// registerBody is register of a stored App. A deletion has no body and no subscriptions.
func (p *Platform) registerBody(ctx context.Context, tx *store.Tx, id string, body []byte, onlyFirst bool) error {
	a := new(r4.App)
	if len(body) > 0 {
		r, err := fhir.Decode(p.Service.Model, body)
		if err != nil {
			return err
		}
		var ok bool
		if a, ok = r.(*r4.App); !ok {
			return nil
		}
	}
	return register(ctx, tx, id, a, onlyFirst)
}
