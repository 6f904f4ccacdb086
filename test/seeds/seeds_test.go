package seeds

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

func TestSeeds(t *testing.T) {
	short := flag.Lookup("test.short").Value
	before := short.String()
	t.Cleanup(func() { _ = short.Set(before) })
	for _, c := range []struct {
		n           int
		seeds, seed string
		short       bool
		want        []uint64
	}{
		{n: 15, want: []uint64{0, 1, 2}},
		{n: 74, short: true, want: []uint64{0, 1}},
		{n: 3, short: true, seeds: "all", want: []uint64{0, 1, 2}},
		{n: 19, want: []uint64{0, 1, 2}},
		{n: 1, want: []uint64{0}},
		{n: 6, seeds: "all", want: []uint64{0, 1, 2, 3, 4, 5}},
		{n: 6, seeds: "all", seed: "17", want: []uint64{17}},
		{n: 6, seed: "0", want: []uint64{0}},
	} {
		t.Setenv("SEEDS", c.seeds)
		t.Setenv("SEED", c.seed)
		if err := short.Set(strconv.FormatBool(c.short)); err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(Of(t, c.n)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// recorder is a test that records its log and does not end when it fails.
type recorder struct {
	testing.TB
	failed bool
	log    []string
}

func (r *recorder) Helper()         {}
func (r *recorder) Name() string    { return "TestModel/old_(1)" }
func (r *recorder) Failed() bool    { return r.failed }
func (r *recorder) fail(why string) { r.failed, r.log = true, append(r.log, why) }

func (r *recorder) Logf(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }

// A test that fails prints its seed, even if it calls Fatal, and runs no other seed.
func TestFailure(t *testing.T) {
	t.Setenv("SEEDS", "all")
	t.Setenv("SEED", "")
	want := []string{"seed 2; to repeat it: SEED=2 go test -run '^TestModel$/^old_\\(1\\)$'"}
	for name, fail := range map[string]func(r *recorder){
		"error": func(r *recorder) { r.failed = true },
		"fatal": func(r *recorder) { r.failed = true; panic("ends") },
	} {
		r, last := &recorder{}, uint64(0)
		func() {
			defer func() { _ = recover() }()
			for last = range Of(r, 10) {
				if last == 2 {
					fail(r)
				}
			}
		}()
		if last != 2 || !slices.Equal(r.log, want) {
			t.Errorf("%s: seed %d, %q, want %q", name, last, r.log, want)
		}
	}
}

// A wrong value is an error, so that nobody believes to have run all seeds.
func TestWrongValues(t *testing.T) {
	for name, value := range map[string]string{"SEEDS": "40", "SEED": "x"} {
		t.Setenv("SEEDS", "")
		t.Setenv("SEED", "")
		t.Setenv(name, value)
		r := &recorder{}
		if Of(r, 10); !r.failed {
			t.Errorf("%s=%s is accepted", name, value)
		}
	}
}
