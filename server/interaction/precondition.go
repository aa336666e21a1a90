package interaction

import (
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/store"
)

// Preconditions are the conditional headers of a write: an update, a patch, a delete.
// The zero value has no condition. The store judges them under the lock of the resource.
// RFC 9110 §13.1.
type Preconditions struct {
	// IfMatch is the header: the versions of which one must be current; "" for any.
	IfMatch string
	// IfNoneMatch is the header: `*`, the resource must not exist, or entity tags
	// of which none may be the current version's; "" for no condition.
	IfNoneMatch string
	// UnmodifiedSince is the time of If-Unmodified-Since, in seconds: the current
	// version must not be younger. IfMatch wins over it. The zero time is no condition.
	UnmodifiedSince time.Time
}

// read reads the conditions into w.
func (p Preconditions) read(w *store.Write) error {
	var err error
	if w.IfNoneMatch, w.NotVersions, err = entityTags(p.IfNoneMatch); err != nil {
		return err
	}
	if w.IfExists, w.IfMatch, err = entityTags(p.IfMatch); err != nil {
		return err
	}
	if w.IfExists {
		w.IfMatch = nil
	}
	if p.IfMatch == "" {
		w.UnmodifiedSince = p.UnmodifiedSince
	}
	return nil
}

// entityTags reads an If-Match, or the If-None-Match of a write: the versions that it
// lists, or any for *. A text that is no entity tag is invalid; a tag that no version has
// is NoVersion. RFC 9110 §13.1.1, §13.1.2.
func entityTags(header string) (any bool, versions []int, err error) {
	if header == "" {
		return false, nil, nil
	}
	for tag := range strings.SplitSeq(header, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" {
			any = true
			continue
		}
		n, err := ParseETag(tag)
		if err != nil {
			return false, nil, err
		}
		versions = append(versions, n)
	}
	return any, versions, nil
}

// notModified reports whether the client's copy, which the conditions describe, is still
// current. If-None-Match wins over If-Modified-Since.
// Spec: https://hl7.org/fhir/R4/http.html#cread, RFC 9110 §13.2.2.
func notModified(v fhir.Version, ifNoneMatch string, ifModifiedSince time.Time) bool {
	if ifNoneMatch != "" {
		for tag := range strings.SplitSeq(ifNoneMatch, ",") {
			if tag = strings.TrimSpace(tag); tag == "*" {
				return true
			}
			if n, err := ParseETag(tag); err == nil && n == v.VersionID {
				return true
			}
		}
		return false
	}
	return !ifModifiedSince.IsZero() && !v.LastUpdated.Truncate(time.Second).After(ifModifiedSince)
}
