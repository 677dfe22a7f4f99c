#!/usr/bin/env bash
# What cluster-gcp.yaml needs on Google Cloud beside the machines: a network that lets in only SSH from you, two
# service accounts with few rights, a bucket, and a database. Run it once, with your own values:
#
#   PROJECT=my-project REGION=us-central1 OPERATOR_CIDR=203.0.113.7/32 bash examples/gcp-prepare.sh
#
# The database costs money until it is deleted (db-f1-micro with 10 GB: see https://cloud.google.com/sql/pricing).
# To be rid of it all, after `ray down`: `gcloud sql instances delete cifar-ray`, `gcloud storage rm -r gs://BUCKET`,
# then the firewall rules, the network, the secret and the service accounts of these names.
#
# NOT YET PROVEN: bash accepts its syntax; it has not been run against Google Cloud.
set -euo pipefail
: "${PROJECT:?}" "${REGION:?}" "${OPERATOR_CIDR:?}"
bucket=$PROJECT-cifar-ray
gcloud config set project "$PROJECT"
gcloud services enable compute.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com \
  sqladmin.googleapis.com secretmanager.googleapis.com servicenetworking.googleapis.com

# The network `default` lets SSH in from everywhere; this one lets nothing in but what is said here.
gcloud compute networks create cifar-ray --subnet-mode=custom
gcloud compute networks subnets create cifar-ray --network=cifar-ray --region="$REGION" --range=10.77.0.0/20 \
  --enable-private-ip-google-access
gcloud compute firewall-rules create cifar-ray-ssh --network=cifar-ray --allow=tcp:22 \
  --source-ranges="$OPERATOR_CIDR" --target-tags=cifar-ray
gcloud compute firewall-rules create cifar-ray-inside --network=cifar-ray --allow=all \
  --source-tags=cifar-ray --target-tags=cifar-ray

gcloud storage buckets create "gs://$bucket" --location="$REGION" --uniform-bucket-level-access \
  --public-access-prevention

# The head rents and ends machines and gives them the worker's account; a worker reaches the bucket alone.
head=cifar-ray-head@$PROJECT.iam.gserviceaccount.com
worker=cifar-ray-worker@$PROJECT.iam.gserviceaccount.com
gcloud iam service-accounts create cifar-ray-head
gcloud iam service-accounts create cifar-ray-worker
gcloud projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$head" --role=roles/compute.instanceAdmin.v1 \
  --condition=None
gcloud iam service-accounts add-iam-policy-binding "$worker" --member="serviceAccount:$head" \
  --role=roles/iam.serviceAccountUser
for account in "$head" "$worker"; do
  gcloud storage buckets add-iam-policy-binding "gs://$bucket" --member="serviceAccount:$account" \
    --role=roles/storage.objectUser
done

# MLflow's database, with an address inside the network only, and its address with the password as a secret.
gcloud compute addresses create cifar-ray-services --global --purpose=VPC_PEERING --prefix-length=20 \
  --network=cifar-ray
gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --ranges=cifar-ray-services \
  --network=cifar-ray
gcloud sql instances create cifar-ray --database-version=POSTGRES_16 --edition=enterprise --tier=db-f1-micro \
  --region="$REGION" --network=cifar-ray --no-assign-ip --storage-size=10
password=$(openssl rand -hex 20)
gcloud sql databases create mlflow --instance=cifar-ray
gcloud sql users create mlflow --instance=cifar-ray --password="$password"
host=$(gcloud sql instances describe cifar-ray --format='value(ipAddresses[0].ipAddress)')
printf 'postgresql+psycopg2://mlflow:%s@%s:5432/mlflow?sslmode=require' "$password" "$host" |
  gcloud secrets create cifar-ray-mlflow-database --data-file=-
gcloud secrets add-iam-policy-binding cifar-ray-mlflow-database --member="serviceAccount:$head" \
  --role=roles/secretmanager.secretAccessor
echo "bucket: gs://$bucket"
