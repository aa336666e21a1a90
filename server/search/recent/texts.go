package recent

import (
	"sync"

	"kiln/server/fhir"
)

// Texts are the texts of a key in the dictionary, and their values in ascending order.
type Texts struct {
	Texts  []string
	Values []int64
}

// The limits of the texts.
const (
	maxTextKeys   = 4096
	maxTextsOfKey = 256
)

// TextCache contains the texts that searches have read, by key. The statement that fetches the rows of a cached answer
// verifies the texts with the answer (plan.Texts): they need no statement of their own. The zero value is
// empty. It is safe for concurrent use.
type TextCache struct {
	mu      sync.Mutex
	entries map[fhir.Key]Texts
}

// FindTexts returns the texts of a key.
func (c *TextCache) FindTexts(key fhir.Key) (Texts, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.entries[key]
	return t, ok
}

// StoreTexts stores the texts of a key. It stores none if they are too many.
func (c *TextCache) StoreTexts(key fhir.Key, t Texts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(t.Texts) > maxTextsOfKey {
		delete(c.entries, key)
		return
	}
	if c.entries == nil || len(c.entries) >= maxTextKeys {
		c.entries = make(map[fhir.Key]Texts)
	}
	c.entries[key] = t
}
