package main

import "testing"

func TestOwnWriterTellsStaleAnswersFromErrors(t *testing.T) {
	entry := func(version string) string { return `{"resource":{"meta":{"versionId":"` + version + `"}}}` }
	for _, c := range []struct {
		name    string
		deleted bool
		judge   func(*ownWriter, *Exchange) verdict
		status  int
		body    string
		want    verdict
	}{
		{"read", false, (*ownWriter).judgeRead, 200, `{"meta":{"versionId":"2"}}`, right},
		{"read of the version before", false, (*ownWriter).judgeRead, 200, `{"meta":{"versionId":"1"}}`, stale},
		{"read before the create", false, (*ownWriter).judgeRead, 404, ``, stale},
		{"read that fails", false, (*ownWriter).judgeRead, 503, ``, failed},
		{"deleted", true, (*ownWriter).judgeRead, 410, ``, right},
		{"read before the delete", true, (*ownWriter).judgeRead, 200, `{"meta":{"versionId":"2"}}`, stale},
		{"search", false, (*ownWriter).judgeSearch, 200, `{"total":1,"entry":[` + entry("2") + `]}`, right},
		{"search of the version before", false, (*ownWriter).judgeSearch, 200, `{"total":1,"entry":[` + entry("1") + `]}`, stale},
		{"search that finds nothing", false, (*ownWriter).judgeSearch, 200, `{"total":0}`, stale},
		{"search with another total", false, (*ownWriter).judgeSearch, 200, `{"total":2,"entry":[` + entry("2") + `]}`, stale},
		{"search after the delete", true, (*ownWriter).judgeSearch, 200, `{"total":0}`, right},
		{"search before the delete", true, (*ownWriter).judgeSearch, 200, `{"total":1,"entry":[` + entry("2") + `]}`, stale},
		{"history", false, (*ownWriter).judgeHistory, 200, `{"total":2,"entry":[{"request":{"method":"PUT"}},{}]}`, right},
		{"history that ends before", false, (*ownWriter).judgeHistory, 200, `{"total":1,"entry":[{"request":{"method":"POST"}}]}`, stale},
		{"history with the delete", true, (*ownWriter).judgeHistory, 200, `{"total":2,"entry":[{"request":{"method":"DELETE"}},{}]}`, right},
		{"history that is refused", false, (*ownWriter).judgeHistory, 401, ``, failed},
	} {
		w := &ownWriter{version: 2, deleted: c.deleted}
		if got := c.judge(w, &Exchange{Status: c.status, Body: []byte(c.body)}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
