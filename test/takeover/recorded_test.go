//go:build linux

package takeover

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/test/lab"
)

// recording is one file of testdata: what lists it, and what loads it.
type recording struct {
	file       string
	list, load []string
}

// recordings are the files of a mode.
func (m mode) recordings() []recording {
	if m.iptables == "" {
		return []recording{
			{m.name + "-ip4.nft", []string{"nft", "-s", "list", "table", "ip", "kube-proxy"}, []string{"nft", "-f", "-"}},
			{m.name + "-ip6.nft", []string{"nft", "-s", "list", "table", "ip6", "kube-proxy"}, []string{"nft", "-f", "-"}},
		}
	}
	var out []recording
	for _, program := range []string{"iptables", "ip6tables"} {
		variant := strings.Replace(m.name, "iptables", program, 1)
		out = append(out, recording{variant + ".save", []string{variant + "-save"}, []string{variant + "-restore"}})
	}
	return out
}

// leave loads what kube-proxy leaves in a mode, and sees that it works.
func (w *world) leave(m mode) {
	w.Helper()
	w.load(m)
	w.served()
}

func (w *world) load(m mode) {
	w.Helper()
	for _, r := range m.recordings() {
		text, err := os.ReadFile(filepath.Join("testdata", r.file))
		w.must(err)
		load := r.load
		if m.iptables != "" {
			load = append(load, "--noflush")
		}
		_, err = w.lab.NodeA.Run(string(text), load...)
		w.must(err)
	}
}

// testRecorded: kube-proxy is gone for long, what it left is taken over.
func testRecorded(w *world, m mode) {
	w.others(m)
	before := w.dump()
	w.leave(m)
	if w.dump() == before {
		w.Fatal("nothing was loaded, so there is nothing to take over")
	}
	traffic := w.start()
	w.taken(w.takeOver(), m)
	w.same(before)
	w.settled(traffic)
}

// TestCleanup: what kube-proxy left, in all modes that it ever ran in, goes with
// what Sluice itself has, and what is said is what went. It takes no API server,
// and nobody's connections are promised anything.
func TestCleanup(t *testing.T) {
	l := lab.New(t, lab.Options{})
	w := &world{T: t, lab: l}
	for _, m := range modes() {
		w.others(m)
	}
	before := w.dump()
	for _, m := range modes() {
		w.load(m)
	}
	said := w.cleanup()
	w.same(before)
	for _, m := range modes() {
		if !strings.Contains(said, "removed "+m.name+": ") {
			t.Errorf("it does not say what of %s was removed:\n%s", m.name, said)
		}
	}
	kept := "kept chain KUBE-FIREWALL and the rules of INPUT, OUTPUT that jump to it, in iptables-legacy filter, ip6tables-legacy filter, " +
		"iptables-nft filter, ip6tables-nft filter: kubelet uses them as well"
	if said := w.cleanup(); said != kept {
		t.Errorf("with nothing left it says:\n%s\nwant\n%s", said, kept)
	}
}

// cleanup does what --cleanup does on node A.
func (w *world) cleanup() string {
	w.Helper()
	said, err := app.Cleanup(w.Context(), app.Options{
		Config: &config.Config{}, Kinds: app.Kinds(), Log: slog.New(slog.DiscardHandler), NetNS: w.lab.NodeA.NetNSFD(),
	})
	w.must(err)
	return strings.Join(said, "\n")
}
