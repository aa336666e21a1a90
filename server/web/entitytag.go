package web

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// TagContent sets the entity tag of an answer that has no version: a hash of its content and of
// the parts that choose its form. It reports whether the client has the answer already: the
// answer is 304 without a body then. RFC 9110 §8.8.3, §13.1.2.
func TagContent(w http.ResponseWriter, r *http.Request, content []byte, form ...string) (has bool) {
	h := sha256.New()
	for _, text := range form {
		h.Write([]byte(text + "\x00"))
	}
	h.Write(content)
	tag := `W/"` + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:15]) + `"`
	w.Header().Set("ETag", tag)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for _, list := range r.Header.Values("If-None-Match") {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == tag[len("W/"):] {
				return true
			}
		}
	}
	return false
}
