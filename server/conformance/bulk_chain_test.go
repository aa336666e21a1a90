package conformance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract: Bulk data, a chain of exports by _since is exact, while two servers write: single writes, transactions,
// deletes and re-creations. Merged, the exports equal the stored resources; no version comes twice; no
// transaction is torn. A longer chain: KILN_TEST_BULK_CHAIN=100.
func TestChainOfExports(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	change := func(c *server.Config) { c.Jobs.MaxPerClient = 100 }
	servers := []*service{startOn(t, database, change), startOn(t, database, change)}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	for w := range 4 {
		s := servers[w%2]
		random := rand.New(rand.NewPCG(1, uint64(w)))
		writing.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("w%d-%d", w, random.IntN(20))
				switch n % 4 {
				case 0, 1:
					s.do("PUT", "/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"name":[{"text":"n%d"}]}`, id, n))
				case 2:
					s.do("DELETE", "/Patient/"+id, "")
				default: // both have the same number, or the transaction is torn
					var entries []string
					for i := range 20 {
						entries = append(entries, fmt.Sprintf(`{"resource":{"resourceType":"Basic","id":"t%d-%d","code":{"text":"n%d"}},"request":{"method":"PUT","url":"Basic/t%d-%d"}}`, w, i, n, w, i))
					}
					s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[`+strings.Join(entries, ",")+`]}`)
				}
			}
		})
	}
	merged := make(map[string]string)
	versions := make(map[string]bool)
	since := ""
	export := func(n int) {
		t.Helper()
		path := "/$export?_type=Patient,Basic"
		if since != "" {
			path += "&_since=" + url.QueryEscape(since)
		}
		r := servers[n%2].bulk("GET", path, "")
		texts := make(map[string]map[string]bool) // of a transaction, by writer
		for name, list := range r.lines {
			var v struct {
				Meta struct{ VersionID string }
				Code struct{ Text string }
			}
			if err := json.Unmarshal([]byte(list[0]), &v); err != nil {
				t.Fatal(err)
			}
			if key := name + "/" + v.Meta.VersionID; versions[key] {
				t.Errorf("export %d has %s again", n, key)
			} else {
				versions[key] = true
			}
			merged[name] = list[0]
			if writer, _, ok := strings.Cut(name, "-"); ok && strings.HasPrefix(name, "Basic/") {
				if texts[writer] == nil {
					texts[writer] = make(map[string]bool)
				}
				texts[writer][v.Code.Text] = true
			}
		}
		for writer, of := range texts {
			if len(of) > 1 {
				t.Errorf("export %d has parts of several transactions of %s: %v", n, writer, of)
			}
		}
		for _, name := range r.deleted() {
			delete(merged, name)
		}
		since = r.manifest.TransactionTime
	}
	length := 12
	if text := os.Getenv("KILN_TEST_BULK_CHAIN"); text != "" {
		var err error
		if length, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for n := range length {
		export(n)
	}
	close(stop)
	writing.Wait()
	export(length)
	t.Logf("%d exports with %d versions", length+1, len(versions))
	stored := servers[0].bulk("GET", "/$export?_type=Patient,Basic", "")
	for name, list := range stored.lines {
		if merged[name] != list[0] {
			t.Errorf("%s is %s, the chain has %s", name, list[0], merged[name])
		}
	}
	for name := range merged {
		if stored.lines[name] == nil {
			t.Errorf("the chain has %s, which is not stored", name)
		}
	}
}
