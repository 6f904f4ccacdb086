// Command image writes the image of Sluice for several platforms as an OCI image layout (opencontainers/image-spec,
// image-layout.md), without a container engine. The image has the same files as the last stage of the Dockerfile. The
// same programs, version and time give the same bytes.
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

const usage = `usage: image -version v0.1.0 -out FOLDER [-packages FOLDER] linux/amd64=PROGRAM [linux/arm64=PROGRAM ...]
       image -packages FOLDER -files amd64 >TAR

Writes the image as an OCI image layout into a new folder. SOURCE_DATE_EPOCH is the time of its
files, in seconds since 1970. With packages it is the image for mode iptables: the folder has the
packages of debian.sh, in a folder for each processor. With -files it writes only the files that
the image has of them.
`

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	o, err := parse(args, os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	if o.files == "" {
		return write(o)
	}
	layer, err := debianLayer(o, o.files)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(layer)
	return err
}

// options are the arguments of main.
type options struct {
	version  string
	out      string // a folder that does not exist yet
	packages string // a folder with a folder of Debian packages for each processor, for the image for mode iptables
	files    string // a processor, to write only the files of the packages
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
	fs.StringVar(&o.packages, "packages", "", "")
	fs.StringVar(&o.files, "files", "", "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.files != "" && o.packages != "" && o.out == "" && fs.NArg() == 0 {
		return o, nil
	}
	if o.files != "" || o.version == "" || o.out == "" || fs.NArg() == 0 {
		fs.Usage()
		return o, errors.New("want -version, -out and a program, or -packages and -files")
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
