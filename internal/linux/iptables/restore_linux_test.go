package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// An error for refused input contains the rule and the reason, with every program.
func TestErrorsNameTheRefusedRule(t *testing.T) {
	long := ":" + strings.Repeat("A", 29) + " - [0:0]"
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		for _, tt := range []struct {
			input  string
			rule   string // "": the programs do not report it
			reason string // a part of it
		}{
			{":A - [0:0]\n-A A -j ACCEPT\n-A A -j NOPE", "-A A -j NOPE|", "NOPE"}, // in nft at the COMMIT
			{":A - [0:0]\n-A A -j ACCEPT\n-A A --bad x -j ACCEPT", "-A A --bad x -j ACCEPT", `unknown option "--bad"`},
			{":A - [0:0]\n-A A -m nosuch -j ACCEPT\n-A A -j ACCEPT", "-A A -m nosuch -j ACCEPT", "Couldn't load match `nosuch'"},
			{":A - [0:0]\n-D A -j ACCEPT\n-A A -j ACCEPT", "-D A -j ACCEPT", ""},
			{":A - [0:0]\n-A A -j ACCEPT\n-X A", "-X A", ""},
			{":A - [0:0]\n:B - [0:0]\n-A A -j B\n-X B", "-X B", ""},
			{"-A NOPE -j ACCEPT", "-A NOPE -j ACCEPT", ""},
			{long, long, "28 chars|under 29 chars"},
			{":A - [0:0]\n-A A -s nowhere.invalid -j ACCEPT", "-A A -s nowhere.invalid -j ACCEPT", "nowhere.invalid"},
			{":A - [0:0]\n-A A -p tcp -m tcp --dport 99999 -j ACCEPT", "-A A -p tcp -m tcp --dport 99999 -j ACCEPT", "99999"},
			{":A - [0:0]\n-A A -j REJECT", "-A A -j REJECT|", ""}, // refused by the kernel; in legacy at the COMMIT
		} {
			for _, family := range families() {
				err := h.tools.Restore(t.Context(), family, []byte("*nat\n"+tt.input+"\nCOMMIT\n"))
				e, ok := errors.AsType[*RestoreError](err)
				if !ok {
					t.Errorf("%q: %v, want a RestoreError", tt.input, err)
					continue
				}
				t.Log(err)
				if !oneOf(tt.rule, func(rule string) bool { return e.Rule == rule }) {
					t.Errorf("%q: rule %q, want %q", tt.input, e.Rule, tt.rule)
				}
				if e.Rule != "" && e.Rule != strings.Split("*nat\n"+tt.input, "\n")[e.Line-1] {
					t.Errorf("%q: line %d is not %q", tt.input, e.Line, e.Rule)
				}
				if !oneOf(tt.reason, func(reason string) bool { return strings.Contains(e.Reason, reason) }) {
					t.Errorf("%q: %q, want %q", tt.input, e.Reason, tt.reason)
				}
				if want := family.Program() + "-" + string(variant) + "-restore"; e.Program != want ||
					strings.Contains(e.Reason, "\n") {
					t.Errorf("%q: %+v, want by %s, on one line", tt.input, e, want)
				}
				if chains := h.read(family, "nat"); len(chains["A"].Rules) > 0 {
					t.Errorf("%q: left %v", tt.input, chains)
				}
			}
		}
	})
}

func oneOf(alternatives string, matches func(string) bool) bool {
	for one := range strings.SplitSeq(alternatives, "|") {
		if matches(one) {
			return true
		}
	}
	return false
}

// Tables before the refused one are written, and the error has their number.
func TestTablesBeforeARefusedOneAreWritten(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		for i, refused := range []string{
			"-A PREROUTING -m nosuch", "-A PREROUTING -j NOPE", "-D PREROUTING -j ACCEPT", "-A PREROUTING -j REJECT",
		} {
			for _, family := range families() {
				chain := fmt.Sprint("A", i)
				input := "*filter\n:" + chain + " - [0:0]\nCOMMIT\n*nat\n:B - [0:0]\n" + refused +
					"\nCOMMIT\n*mangle\n:C - [0:0]\nCOMMIT\n"
				err := h.tools.Restore(t.Context(), family, []byte(input))
				if e, ok := errors.AsType[*RestoreError](err); !ok || e.Committed != 1 {
					t.Errorf("%q: %#v, want an error after 1 written table", refused, err)
				}
				if _, there := h.read(family, "filter")[chain]; !there {
					t.Errorf("%q: the first table is not written", refused)
				}
				if _, there := h.read(family, "nat")["B"]; there {
					t.Errorf("%q: a part of the refused table is written", refused)
				}
			}
		}
	})
}

// A comment that is too long for the kernel is truncated, not refused, and the rule
// compares as equal.
func TestLongComments(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		rule := `-m comment --comment "` + strings.Repeat("long name/", 40) + `" -j ACCEPT`
		h.restore(IPv4, "*nat\n:A - [0:0]\n-A A "+rule+"\nCOMMIT\n")
		if got := h.read(IPv4, "nat")["A"].Rules; len(got) != 1 || got[0] != Canonical(rule) {
			t.Errorf("read %q, want %q", got, Canonical(rule))
		}
	})
}

// The programs run in the namespace of Options, and change no other.
func TestNamespaces(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		first, second := newHost(t, variant), newHost(t, variant)
		first.restore(IPv4, "*nat\n:A - [0:0]\n-A A -j ACCEPT\nCOMMIT\n")
		if got := first.read(IPv4, "nat")["A"].Rules; len(got) != 1 {
			t.Errorf("read %v", got)
		}
		if got := second.read(IPv4, "nat"); len(got) != 0 {
			t.Errorf("in the other namespace: %v", got)
		}
		var here *Tools
		kerneltest.Do(t, first.netns, func() (err error) {
			here, err = Open(t.Context(), Options{Lock: first.lock, Path: onlyPrograms(t, variant)})
			if err != nil {
				return err
			}
			got, err := here.Read(t.Context(), Table{IPv4, "nat"})
			if len(got["A"].Rules) != 1 {
				t.Errorf("in the current namespace: %v", got)
			}
			return err
		})
	})
}

// holdLock locks a file like iptables does. The returned function releases the lock.
func holdLock(t *testing.T, path string) (free func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

const small = "*nat\n:A - [0:0]\nCOMMIT\n"

// The legacy variant waits for the lock, and the error names its holder. The nft variant has no
// lock.
func TestWaitsForTheLock(t *testing.T) {
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	holder := fmt.Sprintf("held by %s (process %d)", strings.TrimSpace(string(name)), os.Getpid())

	h := newHostWith(t, Legacy, Options{Wait: time.Minute})
	release := holdLock(t, h.lock)
	time.AfterFunc(100*time.Millisecond, release)
	h.restore(IPv4, small)

	short := newHostWith(t, Legacy, Options{Wait: time.Second})
	defer holdLock(t, short.lock)()
	err = short.tools.Restore(t.Context(), IPv4, []byte(small))
	if _, ok := errors.AsType[*RestoreError](err); ok || err == nil ||
		!strings.Contains(err.Error(), short.lock+": "+holder+" after 1s") {
		t.Errorf("got %v, want that the lock is %s", err, holder)
	}

	unlocked := newHostWith(t, NFT, Options{Wait: time.Second})
	defer holdLock(t, unlocked.lock)()
	unlocked.restore(IPv4, small)
}

// A program does not block if its output is not read to the end.
func TestUnreadOutputDoesNotBlockAProgram(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	parseErr := errors.New("unexpected output")
	err := (&Tools{opts: Options{Path: "/usr/bin:/bin"}}).run(ctx, call{
		path: "/bin/sh", args: []string{"-c", "head -c 1000000 /dev/zero"},
		output: func(io.Reader) error { return parseErr },
	})
	if !errors.Is(err, parseErr) {
		t.Errorf("got %v, want the error of the parser", err)
	}
}

// The size of an error message of a program is limited.
func TestErrorMessagesAreBounded(t *testing.T) {
	folder := onlyPrograms(t, NFT)
	path := filepath.Join(folder, "iptables-nft-restore")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nexec 1>&2\nfor i in 1 2 3 4 5 6 7 8 9 10; do printf '%9999s\\n' x; done; exit 1\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	tools, err := Open(t.Context(), Options{NetNS: kerneltest.Namespace(t), Path: folder + ":/bin:/usr/bin"})
	if err != nil {
		t.Fatal(err)
	}
	err = tools.Restore(t.Context(), IPv4, []byte(strings.Repeat(small, 100_000)))
	e, ok := errors.AsType[*RestoreError](err)
	if !ok || len(e.Reason) > maxStderr {
		t.Errorf("got an error of type %T", err)
	}
}

// Without privileges the error says so.
func TestWithoutPrivilege(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		var got error
		kerneltest.Do(t, h.netns, func() error {
			tools := h.tools.In(0)
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0); err != nil {
				return err
			}
			got = tools.Restore(t.Context(), IPv4, []byte(small))
			return nil
		})
		if _, ok := errors.AsType[*RestoreError](got); ok || got == nil ||
			!strings.Contains(got.Error(), "grant CAP_NET_ADMIN") {
			t.Errorf("got %v", got)
		}
	})
}

// Open selects the variant that is in use and installed.
func TestOpen(t *testing.T) {
	nft, legacy := NFT, Legacy
	for _, tt := range []struct {
		name      string
		installed []Variant
		commands  []string
		want      Variant
		reason    string
	}{
		{"no rules", []Variant{nft, legacy}, nil, nft, "there are no rules of legacy"},
		{"kubelet uses nft", []Variant{nft, legacy}, []string{
			"iptables-legacy -A INPUT -j ACCEPT", "iptables-nft -t mangle -N KUBE-IPTABLES-HINT",
		}, nft, "KUBE-IPTABLES-HINT is in mangle of nft"},
		{"kubelet uses legacy", []Variant{nft, legacy}, []string{
			"iptables-nft -A INPUT -j ACCEPT", "ip6tables-legacy -t mangle -N KUBE-KUBELET-CANARY",
		}, legacy, "KUBE-KUBELET-CANARY is in mangle of legacy"},
		{
			"more legacy rules",
			[]Variant{nft, legacy},
			[]string{"iptables-legacy -A INPUT -j ACCEPT"},
			legacy, "nft has 0 rules and legacy 1",
		},
		{"equal numbers of rules", []Variant{nft, legacy}, []string{
			"iptables-legacy -A INPUT -j ACCEPT", "ip6tables-nft -A INPUT -j ACCEPT",
		}, nft, "nft has 1 rules and legacy 1"},
		{
			"only legacy",
			[]Variant{legacy},
			[]string{"iptables-nft -t mangle -N KUBE-IPTABLES-HINT"},
			legacy, "KUBE-IPTABLES-HINT is in mangle of nft, but the programs of nft are not installed",
		},
		{
			"only nft",
			[]Variant{nft},
			[]string{"iptables-legacy -t mangle -N KUBE-IPTABLES-HINT"},
			nft,
			"KUBE-IPTABLES-HINT is in mangle of legacy, but the programs of legacy are not installed",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			netns, lock := kerneltest.Namespace(t), filepath.Join(t.TempDir(), "lock")
			for _, command := range tt.commands {
				runIn(t, netns, lock, strings.Fields(command)...)
			}
			tools, err := Open(t.Context(), Options{NetNS: netns, Lock: lock, Path: onlyPrograms(t, tt.installed...)})
			if err != nil {
				t.Fatal(err)
			}
			if tools.Variant() != tt.want || tools.Reason() != tt.reason {
				t.Errorf("%s: %s, want %s: %s", tools.Variant(), tools.Reason(), tt.want, tt.reason)
			}
		})
	}
}

// The IPv6 programs may be missing, and so may those of the other variant.
func TestMissingPrograms(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		folder := t.TempDir()
		for _, suffix := range []string{"-save", "-restore"} {
			name := "iptables-" + string(variant) + suffix
			if err := os.Symlink("/usr/sbin/"+name, filepath.Join(folder, name)); err != nil {
				t.Fatal(err)
			}
		}
		tools, err := Open(t.Context(), Options{
			NetNS: kerneltest.Namespace(t), Lock: filepath.Join(folder, "lock"), Path: folder,
		})
		if err != nil {
			t.Fatal(err)
		}
		if tools.Variant() != variant || !tools.Has(IPv4) || tools.Has(IPv6) {
			t.Errorf("%s, IPv4 %t, IPv6 %t", tools.Variant(), tools.Has(IPv4), tools.Has(IPv6))
		}
		if err := tools.Restore(t.Context(), IPv4, []byte(small)); err != nil {
			t.Error(err)
		}
		if _, err := tools.Read(t.Context(), Table{IPv6, "nat"}); !errors.Is(err, ErrMissing) ||
			!strings.Contains(err.Error(), "ip6tables") {
			t.Errorf("got %v", err)
		}
	})
	_, err := Open(t.Context(), Options{NetNS: kerneltest.Namespace(t), Path: t.TempDir()})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "install the package iptables") {
		t.Errorf("without any program: %v", err)
	}
}
