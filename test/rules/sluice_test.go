//go:build linux

package rules

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nfacct"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// startup bounds how long Sluice may take to write its first rules, and to take over from kube-proxy after that.
const startup = 30 * time.Second

// TestRules verifies that for the same objects and configuration Sluice writes the same rules as
// kube-proxy, with its first write, and does not change them afterwards.
func TestRules(t *testing.T) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			for _, v := range Variants() {
				t.Run(v.Name, func(t *testing.T) { testRules(t, c, v) })
			}
		})
	}
}

func testRules(t *testing.T, c Case, v Variant) {
	host := lab.New(t, lab.Options{}).NodeA
	hint(t, host, v)
	host.Nft("table ip kube-proxy { chain services {}; }")
	p := apiserver.Run(t, host, "--config="+c.Config(), "--manifests="+manifests(t, c))
	ctx, cancel := context.WithTimeout(t.Context(), startup)
	defer cancel()
	sync, err := p.First(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if sync.Err != nil {
		t.Fatalf("the rules were not written: %v", sync.Err)
	}
	first := map[string]Dump{}
	for _, family := range Families() {
		first[family] = parsed(t, host.MustRun(v.Command(family, "save")))
		if diff := Diff(wanted(t, c, v, family), first[family]); diff != "" {
			t.Errorf("%s differs from kube-proxy's:\n%s", v.Command(family, "save"), diff)
		}
	}
	takenOver(ctx, t, p)
	for _, family := range Families() {
		if diff := Diff(first[family], parsed(t, host.MustRun(v.Command(family, "save")))); diff != "" {
			t.Errorf("%s changed afterwards:\n%s", v.Command(family, "save"), diff)
		}
	}
	others(t, host, v)
	if t.Failed() {
		t.Logf("the log of Sluice:\n%s", p.Log())
	}
}

// takenOver waits until Sluice has removed the rules of kube-proxy, which it does after its first write, all at once.
// It logs this because testRules has created a table of kube-proxy's mode nftables.
func takenOver(ctx context.Context, t *testing.T, p *apiserver.Proxy) {
	t.Helper()
	const removed = `msg="Removed leftovers of kube-proxy or of another mode" mechanism=nftables`
	for !strings.Contains(p.Log(), removed) {
		select {
		case <-ctx.Done():
			t.Fatalf("the log lacks %q:\n%s", removed, p.Log())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wanted returns the rules that kube-proxy would write on this kernel. They were recorded on a kernel with nfacct.
func wanted(t *testing.T, c Case, v Variant, family string) Dump {
	t.Helper()
	d := recorded(t, c, v, family)
	if errors.Is(nfacct.New(0).Available(t.Context()), nfacct.ErrUnsupported) {
		return Unaccounted(d)
	}
	return d
}

// hint creates the chain by which kubelet shows other programs the variant in use.
func hint(t *testing.T, host *lab.Host, v Variant) {
	t.Helper()
	for _, family := range Families() {
		host.MustRun(v.Command(family, ""), "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	}
}

// others verifies that nothing was written with the other variant.
func others(t *testing.T, host *lab.Host, used Variant) {
	t.Helper()
	for _, v := range Variants() {
		if v == used {
			continue
		}
		for _, family := range Families() {
			if text := host.MustRun(v.Command(family, "save")); strings.Contains(text, "KUBE-") {
				t.Errorf("%s has rules too:\n%s", v.Command(family, "save"), text)
			}
		}
	}
}

// manifests creates a folder with the objects of a case.
func manifests(t *testing.T, c Case) string {
	t.Helper()
	docs, err := c.Documents()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(strings.Join(docs, "\n---\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
