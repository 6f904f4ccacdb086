package text

import "testing"

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1 << 10: "1 KiB", 3 << 19: "1.5 MiB",
		200 << 20: "200 MiB", 5 << 30: "5 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}
