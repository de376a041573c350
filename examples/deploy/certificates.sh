#!/bin/sh
# Makes a test authority, the SuperLink's certificate and a key for every site, each in the folder of who needs it.
# Whoever has authority/ca.key can be the server: keep it off all machines.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir certificates certificates/authority certificates/server certificates/public
cd certificates
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365 -subj "/CN=test authority" \
    -keyout authority/ca.key -out authority/ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=superlink" \
    -keyout server/superlink.key -out authority/superlink.csr
printf 'subjectAltName=DNS:superlink,DNS:localhost,IP:127.0.0.1\n' >authority/names
openssl x509 -req -in authority/superlink.csr -CA authority/ca.crt -CAkey authority/ca.key -CAcreateserial \
    -days 365 -extfile authority/names -out server/superlink.crt
cp authority/ca.crt server
cp authority/ca.crt public
for site in 0 1 2; do
    mkdir "site-$site"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "site-$site" -f "site-$site/site"
    cp authority/ca.crt "site-$site"
    cp "site-$site/site.pub" "public/site-$site.pub"
done
chmod 755 . public
chmod 644 public/*
