package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Options says where and how the programs are run.
type Options struct {
	NetNS int           // file descriptor of a network namespace; 0: the current one
	Log   *slog.Logger  // nil: nothing is logged
	Lock  string        // file that the legacy variant locks; "": /run/xtables.lock
	Wait  time.Duration // how long to wait for the lock; 0: 5 s, as kube-proxy
	Poll  time.Duration // legacy: between looks for edits of others; 0: a second
	Path  string        // folders in which the programs are; "": $PATH, /usr/sbin and /sbin
}

const (
	defaultLock = "/run/xtables.lock"
	defaultWait = 5 * time.Second
	defaultPoll = time.Second
)

// Tools are the programs of one variant in one network namespace. They may be
// used by several goroutines.
type Tools struct {
	opts     Options
	kernel   *Kernel
	tables   tableReader // the kernel
	variant  Variant
	reason   string
	programs map[Family]programs
	period   atomic.Int64           // nanoseconds between looks at legacy tables; 0: a second
	waits    atomic.Bool            // for the lock, and that was told
	trouble  atomic.Pointer[string] // of the watch of legacy tables; nil or empty: none
	own      own
}

// programs are the paths of those of one family.
type programs struct{ save, restore string }

// Open finds the programs, and out which variant is in use. It starts nothing
// that stays.
func Open(ctx context.Context, o Options) (*Tools, error) {
	o.fill()
	kernel := NewKernel(o)
	t := &Tools{opts: o, kernel: kernel, tables: kernel}
	t.SetPoll(o.Poll)
	installed, err := o.installed(ctx)
	if err != nil {
		return nil, err
	}
	variant, reason, err := detector{&t.opts, kernel, installed}.detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out which variant of iptables is in use: %w", err)
	}
	t.variant, t.reason = choose(variant, reason, installed)
	t.programs = installed[t.variant]
	return t, nil
}

func (o *Options) fill() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Lock == "" {
		o.Lock = defaultLock
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Path == "" {
		o.Path = strings.Join([]string{os.Getenv("PATH"), "/usr/sbin", "/sbin"}, string(filepath.ListSeparator))
	}
}

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("not installed")

// Variant returns which variant is used.
func (t *Tools) Variant() Variant { return t.variant }

// Reason says why: "KUBE-IPTABLES-HINT is in mangle of nft".
func (t *Tools) Reason() string { return t.reason }

// SetPoll changes how long it is from one look at legacy tables to the next; 0: a
// second. It counts from the next look on.
func (t *Tools) SetPoll(d time.Duration) { t.period.Store(int64(d)) }

func (t *Tools) poll() time.Duration {
	if d := t.period.Load(); d > 0 {
		return time.Duration(d)
	}
	return defaultPoll
}

// Has reports whether the programs of a family are installed.
func (t *Tools) Has(f Family) bool { return t.programs[f].restore != "" }

// Close ends the use of the tools.
func (t *Tools) Close() error { return nil }

// roomNFT is how many lines of input one Restore should have: iptables-nft-restore
// looks for each chain among all that it has made, so it takes four times as long
// for twice as much, and each run has the kernel walk all rules. With 10,000
// Services 3,000 to 4,000 lines took least.
const roomNFT = 4000

// Room returns how many lines of input one Restore should have at most. The
// legacy variant writes each table as a whole, so that one is better than two.
func (t *Tools) Room() int {
	if t.variant == NFT {
		return roomNFT
	}
	return math.MaxInt
}

// look finds a program; empty if there is none.
func (o *Options) look(name string) string {
	for _, folder := range filepath.SplitList(o.Path) {
		path := filepath.Join(folder, name)
		info, err := os.Stat(path)
		if folder != "" && err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// installed finds the programs of all variants, by the names that all
// distributions have since both variants exist. Where there are none of these,
// those without a variant in their name say which they are.
func (o *Options) installed(ctx context.Context) (map[Variant]map[Family]programs, error) {
	all := map[Variant]map[Family]programs{}
	for _, variant := range []Variant{NFT, Legacy} {
		if found := o.family("-" + string(variant)); found[IPv4].restore != "" {
			all[variant] = found
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	found := o.family("")
	if found[IPv4].restore == "" {
		return nil, fmt.Errorf("iptables is %w: looked for iptables-nft-restore, iptables-legacy-restore and iptables-restore in %s: install the package iptables, or use the image whose tag ends in -iptables", ErrMissing, o.Path)
	}
	variant, err := o.version(ctx)
	if err != nil {
		return nil, err
	}
	all[variant] = found
	return all, nil
}

func (o *Options) family(suffix string) map[Family]programs {
	found := map[Family]programs{}
	for _, f := range []Family{IPv4, IPv6} {
		p := programs{
			save:    o.look(programName(f, suffix, "-save")),
			restore: o.look(programName(f, suffix, "-restore")),
		}
		if p.save != "" && p.restore != "" {
			found[f] = p
		}
	}
	return found
}

// version asks iptables for its variant: "iptables v1.8.9 (nf_tables)". Versions
// before 1.8.0 do not say, and are legacy.
func (o *Options) version(ctx context.Context) (Variant, error) {
	path := o.look(programName(IPv4))
	if path == "" {
		path = o.look(programName(IPv4, "-restore"))
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = o.environment()
	cmd.WaitDelay = patience
	said, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	if strings.Contains(string(said), "nf_tables") {
		return NFT, nil
	}
	return Legacy, nil
}

func (o *Options) environment() []string {
	return []string{"LC_ALL=C", "PATH=" + o.Path, "XTABLES_LOCKFILE=" + o.Lock}
}
