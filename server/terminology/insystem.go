package terminology

import (
	"context"
	"time"

	"kiln/server/outcome"
)

// InSystem reports whether a code is in a code system, in the version of that name or,
// with version "", in the newest version. known is false where local definitions cannot
// tell: there is no such code system or version, or it does not have all its codes.
func (s *Service) InSystem(system, version, code string) (in, known bool) {
	sn := s.recentSnapshot()
	at := canonical{system, version}
	set := sn.systems.get(at.String())
	if set == nil {
		set = sn.compileSystem(at)
	}
	return set.contains(system, code)
}

// compileSystem makes the code set of a code system.
func (sn *snapshot) compileSystem(at canonical) *codeSet {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	set := unknownSet
	cs, err := sn.codeSystem(ctx, at)
	switch {
	case err != nil && !outcome.Is(err, outcome.CodeNotFound): // a supplement has no codes of its own
		sn.config.Logger.Warn("code system cannot be used to check codes", "system", at.String(), "error", err)
	case err == nil && cs != nil && cs.complete && grammars[at.url] == nil:
		set = cs.codeSet(at.url)
	}
	sn.systems.put(at.String(), set)
	return set
}

// codeSet is all codes of a code system.
func (cs *codeSystem) codeSet(system string) *codeSet {
	codes := make(map[string]struct{}, len(cs.byCode))
	for code := range cs.byCode {
		codes[code] = struct{}{}
	}
	t := systemCodes{system: system, codes: codes}
	if cs.fold {
		t.folded = codes // byCode has the lower case forms too
	}
	return &codeSet{systems: []systemCodes{t}, version: cs.version, size: max(50, len(codes))}
}
