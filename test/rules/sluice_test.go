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

	"github.com/sluice-proxy/sluice/internal/kernel/nfacct"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/lab"
)

// startup is how long Sluice may take to write its first rules on a busy machine.
const startup = 30 * time.Second

// aWhile is how long what Sluice does after its first write may take: it removes
// what kube-proxy left, which looks much like its own.
const aWhile = 700 * time.Millisecond

// TestRules: Sluice makes the rules that kube-proxy made of the same objects with
// the same configuration, has made them with its first write, and leaves them.
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
	time.Sleep(aWhile)
	for _, family := range Families() {
		if diff := Diff(first[family], parsed(t, host.MustRun(v.Command(family, "save")))); diff != "" {
			t.Errorf("%s changed afterwards:\n%s", v.Command(family, "save"), diff)
		}
	}
	others(t, host, v)
	if t.Failed() {
		t.Logf("Sluice said:\n%s", p.Log())
	}
}

// wanted is what kube-proxy would make on this kernel, which is known of one with
// nfacct.
func wanted(t *testing.T, c Case, v Variant, family string) Dump {
	t.Helper()
	d := recorded(t, c, v, family)
	if errors.Is(nfacct.New(nfacct.Options{}).Available(t.Context()), nfacct.ErrUnsupported) {
		return Unaccounted(d)
	}
	return d
}

// hint makes what kubelet makes on every node, and what tells others which
// variant it uses.
func hint(t *testing.T, host *lab.Host, v Variant) {
	t.Helper()
	for _, family := range Families() {
		host.MustRun(v.Command(family, ""), "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	}
}

// others makes sure that nothing was written with the other variant.
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

// manifests makes a folder with the objects of a case.
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
