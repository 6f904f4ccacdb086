package kerneltest

import "testing"

func TestProgramsMissing(t *testing.T) {
	for text, want := range map[string]string{
		"nodev\tcgroup2\nnodev\tbpf\n\text4\n": "",
		"nodev\tcgroup\nnodev\tbpf\n":          "cgroup2",
		"nodev\tcgroup2\n\text4\n":             "bpf",
	} {
		if got := programsMissing(text); got != want {
			t.Errorf("%q: %q is missing, want %q", text, got, want)
		}
	}
}

func TestProgramsForbidden(t *testing.T) {
	const machine, namespace = "         0          0 4294967295\n", "         0       1000          1\n"
	for _, c := range []struct {
		uidMap string
		uid    int
		want   bool
	}{{machine, 0, false}, {machine, 1000, true}, {namespace, 0, true}, {"", 0, true}} {
		if got := programsForbidden(c.uidMap, c.uid); got != c.want {
			t.Errorf("%q, user %d: forbidden %t, want %t", c.uidMap, c.uid, got, c.want)
		}
	}
}
