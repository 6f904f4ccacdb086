package divert

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// ip runs the program ip in a namespace and returns its output.
func ip(t *testing.T, netns int, args string) string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, netns, func() (err error) {
		out, err = exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		return err
	})
	return string(out)
}

// Everything exists once, whoever added it, and for one mark only. Removal leaves what others have.
func TestEnsureAndRemove(t *testing.T) {
	netns := kerneltest.Namespace(t)
	ip(t, netns, "-4 rule add fwmark 0x1 lookup 5383") // of another program
	before := ip(t, netns, "-4 rule") + ip(t, netns, "-6 rule")
	d := New(netns)
	for _, mark := range []uint32{0x2000, 0x2000, 0x1000} {
		if err := d.Ensure(mark, IPv4, IPv6); err != nil {
			t.Fatal(err)
		}
	}
	for _, family := range []string{"-4", "-6"} {
		rules := ip(t, netns, family+" rule")
		if strings.Count(rules, "83:\tfrom all fwmark 0x1000/0x1000 lookup 5383") != 1 || strings.Contains(rules, "0x2000") {
			t.Errorf("rules:\n%s", rules)
		}
		if routes := ip(t, netns, family+" route show table 5383"); strings.Count(routes, "local default dev lo") != 1 {
			t.Errorf("routes:\n%s", routes)
		}
	}
	ip(t, netns, "-6 rule del pref 83")
	ip(t, netns, "-4 route flush table 5383")
	if err := New(netns).Ensure(0x1000, IPv4, IPv6); err != nil { // another run
		t.Fatal(err)
	}
	if err := New(netns).Ensure(0x1000, IPv6); err != nil { // IPv4 is not served any more
		t.Fatal(err)
	}
	if rest := ip(t, netns, "-4 rule show pref 83") + ip(t, netns, "-4 route show table 5383 proto 83"); rest != "" {
		t.Errorf("left in IPv4:\n%s", rest)
	}
	if err := New(netns).Ensure(0x1000, IPv4, IPv6); err != nil {
		t.Fatal(err)
	}
	if n, err := New(netns).Remove(); err != nil || n != 4 {
		t.Errorf("removed %d, %v", n, err)
	}
	if n, err := d.Remove(); err != nil || n != 0 {
		t.Errorf("a second removal removed %d, %v", n, err)
	}
	if after := ip(t, netns, "-4 rule") + ip(t, netns, "-6 rule"); after != before {
		t.Errorf("rules before\n%s\nafter\n%s", before, after)
	}
}
