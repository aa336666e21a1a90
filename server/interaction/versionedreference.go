package interaction

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// versionedReference matches a local reference that names a version.
var versionedReference = regexp.MustCompile(`"reference":"([^"]*?)([A-Z][A-Za-z]+)/([A-Za-z0-9.-]{1,64})/_history/([0-9]{1,9})"`)

// Limits of the warnings about versions: warnings of a page, and reads of targets for them.
const (
	maxVersionWarnings = 20
	maxVersionReads    = 100
)

// firstLinks are the first links of the chains of a search: "subject", "subject:Patient".
func firstLinks(q *search.Query) []string {
	var out []string
	for name := range q.Applied() {
		if link, _, chain := strings.Cut(name, "."); chain && !strings.HasPrefix(name, "_") {
			out = append(out, link)
		}
	}
	return out
}

// followed reports whether one of the links may lead from a type to another.
func followed(reg *search.Registry, links []string, from, to string) bool {
	return slices.ContainsFunc(links, func(link string) bool {
		code, typ, narrowed := strings.Cut(link, ":")
		if narrowed {
			return typ == to
		}
		p, ok := reg.Lookup(from, code)
		return ok && slices.Contains(reg.Targets(p), to)
	})
}

// warnOfVersions returns a warning for each reference of the matches that names a version, where _include or a chain used
// another one: a search has the current versions alone.
// Spec: https://hl7.org/fhir/R4/search.html#versions, search.html#revinclude.
func (s *Service) warnOfVersions(ctx context.Context, q *search.Query, found *store.SearchResult) ([]outcome.Issue, error) {
	included := make(map[string]int, len(found.Includes))
	for _, v := range found.Includes {
		included[v.ResourceType+"/"+v.ID] = v.VersionID
	}
	chains := firstLinks(q)
	if len(included) == 0 && len(chains) == 0 {
		return nil, nil
	}
	from, err := s.VisibleReader(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	reg, reads := s.Parameters.Current(), 0
	var out []outcome.Issue
	warned := make(map[string]bool)
	for _, match := range found.Matches {
		if !bytes.Contains(match.Body, []byte("/_history/")) {
			continue
		}
		for _, m := range versionedReference.FindAllSubmatch(match.Body, -1) {
			base, typ, id := string(m[1]), string(m[2]), string(m[3])
			target := typ + "/" + id
			if base != "" && !slices.ContainsFunc(s.BaseURLs, func(b string) bool { return base == b+"/" }) || warned[match.ID+" "+target+string(m[4])] {
				continue
			}
			current, used := included[target]
			if !used && reads < maxVersionReads && followed(reg, chains, match.ResourceType, typ) {
				reads++
				v, err := from.Read(ctx, typ, id)
				if _, known := outcome.From(err); err != nil && !known {
					return nil, err
				}
				current, used = v.VersionID, err == nil
			}
			if !used || strconv.Itoa(current) == string(m[4]) {
				continue
			}
			warned[match.ID+" "+target+string(m[4])] = true
			out = append(out, outcome.Issue{Severity: outcome.Warning, Code: outcome.CodeIncomplete,
				Diagnostics: fmt.Sprintf("%s/%s refers to version %s of %s; the search used its current version", match.ResourceType, match.ID, m[4], target)})
			if len(out) == maxVersionWarnings {
				return out, nil
			}
		}
	}
	return out, nil
}
