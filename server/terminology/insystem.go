package terminology

import (
	"context"
	"time"
)

// InSystem reports whether a code is in a code system of the packages. known is false
// where that cannot be decided: the system is none of theirs, has not all its codes, or
// is there in another version than the one that is asked for ("" is any). Codes that a
// stored code system with the same url has count too.
func (s *Service) InSystem(system, version, code string) (in, known bool) {
	sn := s.recent()
	set := sn.systems.get(system)
	if set == nil {
		set = sn.compileSystem(system)
	}
	if version != "" && version != set.version {
		return false, false
	}
	return set.contains(system, code)
}

// compileSystem makes the code set of a code system.
func (sn *snapshot) compileSystem(system string) *codeSet {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	set := unknownSet
	if lib, err := sn.packages(); err == nil {
		if _, ok := lib.Resolve(system); ok {
			cs, err := sn.codeSystem(ctx, canonical{url: system})
			switch {
			case err != nil:
				sn.config.Logger.Warn("code system cannot be used to check codes", "system", system, "error", err)
			case cs != nil && cs.complete:
				set = cs.codeSet(system)
			}
		}
	}
	sn.systems.put(system, set)
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
