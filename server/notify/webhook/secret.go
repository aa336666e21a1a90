package webhook

import (
	"encoding/base64"
	"strings"
)

// secretPrefix begins a secret of the Standard Webhooks specification.
const secretPrefix = "whsec_"

// ParseSecret returns the key in the text of a secret: the base64 after whsec_, else the bytes of the text.
func ParseSecret(text string) ([]byte, error) {
	rest, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(rest)
}

// FormatSecret returns the text of a key.
func FormatSecret(key []byte) string { return secretPrefix + base64.StdEncoding.EncodeToString(key) }
