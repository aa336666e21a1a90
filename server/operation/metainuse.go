package operation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/smart"
)

// metaPage is how many resources are read at a time for their tags.
const metaPage = 1000

// metaInUse is $meta of a type, or, where typ is "", of the whole server: each
// profile, tag and security label that a resource has, once and sorted. Only
// resources that have one are read, within the time of a search; beyond it fails
// with timeout, 503. Spec: https://hl7.org/fhir/R4/resource-operation-meta.html.
func (s *Set) metaInUse(ctx context.Context, from interaction.Reader, typ string) (interaction.Response, error) {
	if err := s.CheckAllowed(ctx, access.Search, typ, ""); err != nil {
		return interaction.Response{}, err
	}
	from, err := s.SeenBy(ctx, from, smart.Read|smart.Search)
	if err != nil {
		return interaction.Response{}, err
	}
	timeout := s.SearchTimeout()
	if timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = bounded
	}
	found := metaUse{profiles: make(map[string]bool), tags: make(map[[2]string]string), labels: make(map[[2]string]string)}
	for cursor := ""; ; {
		q, err := s.withMeta(typ, cursor)
		if err != nil {
			return interaction.Response{}, err
		}
		page, err := from.Search(ctx, q)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return interaction.Response{}, outcome.New(outcome.CodeTimeout, "there are more resources with profiles, tags or security labels than can be read in %s (search.timeout_seconds)", timeout).Because(err)
		}
		if err != nil {
			return interaction.Response{}, err
		}
		for _, v := range page.Matches {
			if err := found.add(v.Body); err != nil {
				return interaction.Response{}, fmt.Errorf("meta of %s/%s: %w", v.ResourceType, v.ID, err)
			}
		}
		if !page.HasNext {
			if len(found.profiles)+len(found.tags)+len(found.labels) == 0 {
				// JSON in FHIR has no empty objects.
				return interaction.Response{Status: http.StatusOK, Body: fhir.Encode(nil, new(r4.Parameters))}, nil
			}
			return metaParameters(found.meta()), nil
		}
		cursor = page.Last
	}
}

// withMeta asks for the next resources that have a profile, a tag or a label.
func (s *Set) withMeta(typ, cursor string) (*search.Query, error) {
	var all *search.Query
	var terms []int64
	for _, name := range []string{"_profile", "_security", "_tag"} {
		values := url.Values{name + ":missing": {"false"}, "_total": {"none"}, "_count": {fmt.Sprint(metaPage)}}
		if cursor != "" {
			values.Set("_cursor", cursor)
		}
		q, err := search.Parse(s.Parameters.Current(), typ, values, search.Options{MaxCount: metaPage})
		if err != nil {
			return nil, err
		}
		for _, m := range q.Clauses[0].Any {
			terms = append(terms, m.(match.Terms).Values...)
		}
		all = q
	}
	all.Clauses[0].Any = []match.Match{match.Terms{Values: terms}}
	return all, nil
}

// metaUse are the profiles, tags and labels found so far; of a coding, by system
// and code, the first display.
type metaUse struct {
	profiles     map[string]bool
	tags, labels map[[2]string]string
}

func (u *metaUse) add(body []byte) error {
	for name, value := range interaction.EachMember(body) {
		if name != "meta" {
			continue
		}
		type coding struct{ System, Code, Display string }
		var meta struct {
			Profile       []string
			Tag, Security []coding
		}
		if err := json.Unmarshal(value, &meta); err != nil {
			return err
		}
		for _, p := range meta.Profile {
			if p != "" {
				u.profiles[p] = true
			}
		}
		for to, list := range map[*map[[2]string]string][]coding{&u.tags: meta.Tag, &u.labels: meta.Security} {
			for _, c := range list {
				key := [2]string{c.System, c.Code}
				if (*to)[key] == "" {
					(*to)[key] = c.Display
				}
			}
		}
		break
	}
	return nil
}

func (u *metaUse) meta() *r4.Meta {
	m := new(r4.Meta)
	for p := range u.profiles {
		m.Profile = append(m.Profile, fhir.Canonical{})
		m.Profile[len(m.Profile)-1].Text = p
	}
	slices.SortFunc(m.Profile, func(a, b fhir.Canonical) int { return cmp.Compare(a.Text, b.Text) })
	m.Tag, m.Security = codings(u.tags), codings(u.labels)
	return m
}

func codings(use map[[2]string]string) []r4.Coding {
	var out []r4.Coding
	for key, display := range use {
		var c r4.Coding
		c.System.Text, c.Code.Text, c.Display.Text = key[0], key[1], display
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b r4.Coding) int {
		return cmp.Or(cmp.Compare(a.System.Text, b.System.Text), cmp.Compare(a.Code.Text, b.Code.Text))
	})
	return out
}
