package interaction

import (
	"strconv"
	"strings"

	"kiln/server/outcome"
)

// ETag is the entity tag of a version. Spec: https://hl7.org/fhir/R4/http.html#versioning.
func ETag(versionID int) string { return `W/"` + strconv.Itoa(versionID) + `"` }

// NoVersion is what ParseETag makes of an entity tag that this server has given to
// nothing.
const NoVersion = -1

// ParseETag reads the version out of `W/"3"`. Clients also send strong and bare forms;
// these are read too. A well-formed tag of no version is NoVersion; any other text is
// invalid.
// Spec: RFC 9110 §8.8.3.
func ParseETag(tag string) (versionID int, err error) {
	t := strings.TrimSpace(tag)
	t = strings.TrimPrefix(t, "W/")
	quoted := false
	if n := len(t); n >= 2 && t[0] == '"' && t[n-1] == '"' {
		t, quoted = t[1:n-1], true
	}
	v, err := strconv.ParseUint(t, 10, 31)
	if err != nil || v == 0 {
		if quoted && !strings.ContainsFunc(t, func(c rune) bool { return c <= ' ' || c == '"' || c == 0x7f }) {
			return NoVersion, nil
		}
		return 0, outcome.Invalid(`%q is not the ETag of a version: expected W/"1", W/"2", …`, outcome.Clip(tag))
	}
	return int(v), nil
}
