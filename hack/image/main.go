// Command image writes the image of Sluice for several platforms as an OCI image layout (opencontainers/image-spec, image-layout.md), without a
// container engine. The files are those of the last stage of the Dockerfile. The same programs, version and time give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const usage = `usage: image -version v0.1.0 -out FOLDER linux/amd64=PROGRAM [linux/arm64=PROGRAM ...]

Writes the image as an OCI image layout into a new folder. SOURCE_DATE_EPOCH is the time of its
files, in seconds since 1970.
`

func main() {
	o, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"))
	if err == nil {
		err = write(o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are what main is called with.
type options struct {
	version  string
	out      string // a folder that does not exist yet
	created  time.Time
	programs []program
}

// program is Sluice for a platform.
type program struct {
	platform v1.Platform
	path     string
}

func parse(args []string, epoch string) (o options, err error) {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage) }
	fs.StringVar(&o.version, "version", "", "")
	fs.StringVar(&o.out, "out", "", "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.version == "" || o.out == "" || fs.NArg() == 0 {
		fs.Usage()
		return o, errors.New("-version, -out and a program are needed")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return o, fmt.Errorf("SOURCE_DATE_EPOCH=%s: want seconds since 1970", epoch)
	}
	o.created = time.Unix(seconds, 0).UTC()
	for _, arg := range fs.Args() {
		text, path, _ := strings.Cut(arg, "=")
		platform, err := v1.ParsePlatform(text)
		if err != nil || platform.OS == "" || platform.Architecture == "" || path == "" {
			return o, fmt.Errorf("%q: want OS/ARCHITECTURE=PROGRAM", arg)
		}
		o.programs = append(o.programs, program{*platform, path})
	}
	return o, nil
}
