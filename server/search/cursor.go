package search

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// Cursor is a place in the order of a search: between two matches. The page lies
// after it, or before it when Before is set.
type Cursor struct {
	// Keys are the sort values of the match beside the place, as text; nil for a
	// match without a value for that key.
	Keys []*string `json:"k,omitempty"`
	// RID is the surrogate of that match; 0 with Before set is the very end.
	RID    int64 `json:"r,omitempty"`
	Before bool  `json:"b,omitempty"`
	// Size is the length of the page where it is not `_count`: the last page,
	// counted from the end.
	Size int `json:"n,omitempty"`
}

// String encodes the cursor for a URL.
func (c *Cursor) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string) (*Cursor, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	c := new(Cursor)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, err
	}
	if c.RID < 0 || c.RID == 0 && !c.Before || c.Size < 0 || len(c.Keys) > 8 {
		return nil, errors.New("cursor out of bounds")
	}
	for _, k := range c.Keys {
		if k != nil && strings.Contains(*k, "\x00") { // no text of PostgreSQL has it
			return nil, errors.New("cursor with a NUL")
		}
	}
	return c, nil
}
